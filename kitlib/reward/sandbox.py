"""A reward for programs: runs what the model wrote against tests, in a process that can do little harm.

verl 0.9.1: utils/reward_score/sandbox_fusion/ (a remote service) and prime_code/ (in the trainer's process). Left out:
other languages than Python, the service.

    reward.custom_reward_function.path=pkg://kitlib.reward.sandbox
    reward.custom_reward_function.name=score_code

    ground_truth   {"inputs": [stdin, ...], "outputs": [stdout, ...]} (or that as JSON), or Python code with asserts,
                   which runs after the program
    score          share of the tests that pass

What a program gets, and what enforces it:

    CPU seconds, memory, size of a file, open files, processes    resource limits of the kernel (setrlimit)
    seconds on the clock                                          the whole group of processes is killed
    an empty folder as the working directory                      removed afterwards
    no network, no sight of other processes                       namespaces of its own (unshare)
    the rights of `nobody`                                        if the trainer runs as root (Python is mounted where
                                                                  nobody may read it)
    an empty environment                                          no secrets of the trainer

Without namespaces (no root, and user namespaces switched off) a program could reach the network: SandboxError, unless
allow_network=True says that this is meant. A program may read and write what everybody may (such as /tmp). For programs
of an opponent rather than of a model in training, use a virtual machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kitlib.errors import KitError

NOBODY = 65534
NUM_OUTPUT_CHARACTERS = 100_000
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
# Runs in the new process, before the program: limits, then rights. Python's own modules are loaded by then.
_LAUNCHER = """
import os, resource, sys
cpu, memory, file_size, processes, uid = map(int, sys.argv[1:6])
limits = {"CPU": cpu, "AS": memory, "FSIZE": file_size, "NPROC": processes, "NOFILE": 64, "CORE": 0}
for name, value in limits.items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
if uid >= 0:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
os.execv(sys.executable, [sys.executable, "-I", "-B", sys.argv[6]])
"""


class SandboxError(KitError):
    """Tests that cannot be run as they are, or a machine that cannot fence a program in."""


@dataclass(frozen=True)
class Limits:
    """What one run of a program may use."""

    cpu_seconds: int = 5
    wall_seconds: float = 10.0
    memory_mb: int = 512
    file_mb: int = 8
    """Largest file, standard output included."""
    num_processes: int = 256
    """Of all programs that run at the same time, for they share a user."""


@dataclass(frozen=True)
class Outcome:
    """One run: what the program wrote, and how it ended."""

    stdout: str
    stderr: str
    returncode: int
    """Negative: the signal that ended it."""
    timed_out: bool


def score_code(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    allow_network: bool = False,
    **limits: Any,
) -> dict[str, Any]:
    """Run the last fenced block of the response (or all of it) against the tests.

    Gives score (share of tests passed), acc (1.0 if all are), num_passed, num_tests and `error`, the first failure.
    `limits` are those of Limits. Raises SandboxError for a ground truth that is no tests.
    """
    blocks = _FENCED.findall(solution_str)
    program = blocks[-1] if blocks else solution_str
    failures = []
    tests = _tests_of(ground_truth)
    for stdin, stdout, asserts in tests:
        outcome = run_python(f"{program}\n{asserts}", stdin, Limits(**limits), allow_network)
        failures.append(_failure(outcome, stdout))
    num_passed = failures.count("")
    return {
        "score": num_passed / len(tests),
        "acc": float(num_passed == len(tests)),
        "num_passed": num_passed,
        "num_tests": len(tests),
        "error": next((failure for failure in failures if failure), ""),
    }


def run_python(program: str, stdin: str = "", limits: Limits | None = None, allow_network: bool = False) -> Outcome:
    """Run a program in the sandbox; see the head of this file for what holds it in."""
    limits = limits or Limits()
    fence = namespaces(allow_network)
    folder = Path(tempfile.mkdtemp(prefix="kitlib-sandbox-"))
    try:
        work = folder / "work"
        work.mkdir()
        (folder / "program.py").write_text(program, encoding="utf-8")
        python, uid = Path(sys.executable), -1
        if os.geteuid() == 0:
            folder.chmod(0o755)
            os.chown(work, NOBODY, NOBODY)
            uid = NOBODY
            if fence:
                fence, python = _with_readable_python(fence, folder / "python")
        return _run([*fence, *_launch(limits, python, folder / "program.py", uid)], work, stdin, limits.wall_seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_readable_python(fence: list[str], place: Path) -> tuple[list[str], Path]:
    """Mount the Python installation at `place`, for the time and the eyes of one program: root's own home, where it may
    lie, is closed to nobody."""
    place.mkdir()
    installation = Path(sys.base_prefix).resolve()
    python = place / Path(sys.executable).resolve().relative_to(installation)
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    return [*fence, "sh", "-c", script, "sandbox", str(installation), str(place)], python


def _run(command: Sequence[str], work: Path, stdin: str, wall_seconds: float) -> Outcome:
    folder = work.parent
    environment = {"LANG": "C.UTF-8", "PATH": os.defpath, "LD_LIBRARY_PATH": str(folder / "python" / "lib")}
    # Files, not pipes: the limit on file sizes then bounds what a program can make us hold in memory.
    with (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as err, (folder / "in").open("w+b") as given:
        given.write(stdin.encode())
        given.seek(0)
        process = subprocess.Popen(
            command, cwd=work, stdin=given, stdout=out, stderr=err, env=environment, start_new_session=True
        )
        try:
            returncode, timed_out = process.wait(wall_seconds), False
        except subprocess.TimeoutExpired:
            returncode, timed_out = -signal.SIGKILL, True
        finally:
            _kill_group(process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(NUM_OUTPUT_CHARACTERS).decode(errors="replace"))
    # unshare tells of a signal as a shell does: 128 + its number.
    return Outcome(texts[0], texts[1], 128 - returncode if returncode > 128 else returncode, timed_out)


def _launch(limits: Limits, python: Path, program: Path, uid: int) -> list[str]:
    sizes = (limits.cpu_seconds, limits.memory_mb << 20, limits.file_mb << 20, limits.num_processes, uid)
    return [str(python), "-I", "-S", "-c", _LAUNCHER, *map(str, sizes), str(program)]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the program and what it has started; in namespaces of its own nothing survives its first process."""
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def namespaces(allow_network: bool) -> list[str]:
    """The command that puts a program into namespaces of its own, empty if it need not be. Raises SandboxError if the
    machine has none."""
    command = _namespaces()
    if not command and not allow_network:
        raise SandboxError(
            "this machine lets nobody make a network namespace (no root, and no user namespaces), so a program could "
            "reach the network: run as root, allow user namespaces, or set "
            "reward.custom_reward_function.reward_kwargs.allow_network=true"
        )
    return list(command)


@lru_cache(maxsize=1)
def _namespaces() -> tuple[str, ...]:
    """The first way that works here: as root, or as root of a user namespace."""
    fence = ("--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    for command in (("unshare", *fence), ("unshare", "--map-root-user", *fence)):
        try:
            if subprocess.run([*command, "true"], capture_output=True, timeout=10, check=False).returncode == 0:
                return command
        except (OSError, subprocess.TimeoutExpired):
            continue
    return ()


def _tests_of(ground_truth: Any) -> list[tuple[str, str | None, str]]:
    """(stdin, expected stdout or None, code to append) of each test."""
    tests = ground_truth
    if isinstance(tests, str):
        try:
            tests = json.loads(tests)
        except ValueError:
            return [("", None, tests)]
    if not isinstance(tests, dict) or not {"inputs", "outputs"} <= tests.keys() or not len(tests["inputs"]):
        raise SandboxError(
            f"ground_truth {str(ground_truth)[:80]!r} is no tests: expected an object with `inputs` and `outputs`, or "
            "Python code with asserts"
        )
    return [(str(given), str(wanted), "") for given, wanted in zip(tests["inputs"], tests["outputs"], strict=True)]


def _failure(outcome: Outcome, stdout: str | None) -> str:
    """What went wrong in a run, empty if nothing did."""
    if outcome.timed_out:
        return "out of time"
    if outcome.returncode < 0 or outcome.stderr.startswith("unshare:"):  # which stumbles when its child is killed
        return "killed: it reached a limit"
    if outcome.returncode:
        lines = outcome.stderr.strip().splitlines()
        return lines[-1] if lines else f"ended with {outcome.returncode}"
    if stdout is not None and outcome.stdout.split() != stdout.split():
        return f"printed {outcome.stdout[:80]!r}, expected {stdout[:80]!r}"
    return ""
