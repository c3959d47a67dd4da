"""Programs in the sandbox: what they can do, what they cannot, and what their tests are worth."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from kitlib.reward import sandbox
from kitlib.reward.sandbox import Limits, SandboxError, namespaces, run_python, score_code


def fenced_in() -> bool:
    try:
        return bool(namespaces(allow_network=True))
    except SandboxError:
        return False


PATIENT = {"cpu_seconds": 60, "wall_seconds": 200.0}  # a machine that is busy starts a program in seconds
needs_namespaces = pytest.mark.skipif(not fenced_in(), reason="this machine lets nobody make namespaces")
pytestmark = needs_namespaces


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders in which programs of this test have run; programs of other tests may run beside it."""
    made: list[str] = []
    make = tempfile.mkdtemp
    monkeypatch.setattr(sandbox.tempfile, "mkdtemp", lambda **names: made.append(make(**names)) or made[-1])
    return made


def program(code: str) -> str:
    return f"First I think.\n```python\n{code}\n```\nThat is it."


def test_tests_by_input_and_output() -> None:
    tests = {"inputs": ["1 2\n", "5 5\n", "0 0\n"], "outputs": ["3", "10\n", "1"]}
    assert score_code("x", program("a, b = map(int, input().split())\nprint(a + b)"), tests, **PATIENT) == {
        "score": 2 / 3,
        "acc": 0.0,
        "num_passed": 2,
        "num_tests": 3,
        "error": "printed '0\\n', expected '1'",
    }


def test_tests_by_asserts_and_programs_without_a_fence() -> None:
    assert score_code("x", "def twice(x):\n    return 2 * x", "assert twice(4) == 8", **PATIENT)["score"] == 1.0
    result = score_code("x", program("def twice(x):\n    return x"), "assert twice(4) == 8, 'not twice'", **PATIENT)
    assert (result["score"], result["error"]) == (0.0, "AssertionError: not twice")


@pytest.mark.parametrize("truth", ['{"inputs": ["1"]}', {"inputs": [], "outputs": []}, {"tests": 1}, 7])
def test_a_ground_truth_that_is_no_tests_is_named(truth: Any) -> None:
    with pytest.raises(SandboxError, match="is no tests: expected an object with `inputs` and `outputs`"):
        score_code("x", "pass", truth)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = bytearray(10**9)", "MemoryError"),
        ("open('f', 'wb').write(b'x' * 10**8)", "File too large"),
        ("import socket; socket.create_connection(('1.1.1.1', 80), 2)", "unreachable"),
        ("files = [open(f'f{i}', 'w') for i in range(100)]", "Too many open files"),
    ],
)
def test_what_a_program_cannot_do(code: str, said: str) -> None:
    outcome = run_python(code, limits=Limits(**PATIENT))
    assert outcome.returncode != 0
    assert said in outcome.stderr


def test_a_program_sees_no_other_process_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    outcome = run_python(
        "import os\nprint([p for p in os.listdir('/proc') if p.isdigit()], dict(os.environ), os.listdir())",
        limits=Limits(**PATIENT),
    )
    assert outcome.stdout.startswith("['1'] {")
    assert "hush" not in outcome.stdout
    assert outcome.stdout.rstrip().endswith("[]")  # an empty folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
def test_a_program_of_root_runs_as_nobody() -> None:
    code = "import os\nprint(os.getuid(), os.getgid(), os.getgroups())\nopen('/etc/evil', 'w')"
    outcome = run_python(code, limits=Limits(**PATIENT))
    assert outcome.stdout == "65534 65534 []\n"
    assert "Permission denied" in outcome.stderr


def test_time_on_the_clock_and_children_end(folders: list[str]) -> None:
    """Whoever waited for the program or its child would wait for an hour."""
    outcome = run_python(
        "import os, time\nos.fork()\nos.setsid() if os.getpid() != 1 else None\ntime.sleep(3600)",
        limits=Limits(wall_seconds=0.5),
    )
    assert outcome.timed_out
    deadline = time.monotonic() + 60
    while folders[0] in commands() and time.monotonic() < deadline:  # the kernel takes its time
        time.sleep(0.05)
    assert folders[0] not in commands()


def commands() -> str:
    """Everything that runs on this machine."""
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_time_of_the_processor() -> None:
    result = score_code("x", "while True: pass", "", cpu_seconds=1, wall_seconds=200.0)
    assert result["score"] == 0.0
    assert result["error"] == "killed: it reached a limit"


def test_nothing_is_left_behind(folders: list[str]) -> None:
    run_python("open('f', 'w').write('x')", limits=Limits(**PATIENT))
    assert len(folders) == 1 and not Path(folders[0]).exists()


def test_without_namespaces_a_program_runs_only_if_the_network_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_namespaces", lambda: ())
    with pytest.raises(SandboxError, match="could reach the network: run as root, allow user namespaces, or set"):
        namespaces(allow_network=False)
    assert namespaces(allow_network=True) == []
