"""`kitlib doctor` beside a real run of verl on Ray that has one of seven faults planted: each is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIVE_VERL = ROOT.parent / "shared" / "verl_live" / "live_verl.py"
# fault -> kinds of which one must be seen
FAULTS = {
    "stuck_prompt": {"stuck_prompt"},
    "late_marker": {"stuck_prompt"},
    "drop_field": {"field_missing"},
    "wrong_partition": {"partition_mixup"},
    "orphan": {"ghost_key"},
    "nan_reward": {"nan_reward"},
    "failed_session": {"short_group"},
}


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a run with the fault of this test, planted in its first step."""
    if not LIVE_VERL.exists():
        pytest.skip(f"{LIVE_VERL} is not here")
    pytest.importorskip("verl", reason="verl is not installed")
    pytest.importorskip("ray", reason="ray is not installed")
    words = ["--adv", "grpo", "--fault", request.param, "--fault-step", "1", "--steps", "2", "--hold", "300"]
    with open(tmp_path / "log", "w") as log:
        command = [sys.executable, str(LIVE_VERL), *words, "--delay", "6", "--workdir", str(tmp_path)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 200
        while not (tmp_path / "stage.json").exists():
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.5)
        yield (tmp_path / "address").read_text().strip()
    finally:
        process.terminate()
        process.wait(timeout=60)


def kinds_seen(address: str) -> tuple[set[str], int]:
    """What one look says above info, and its exit status."""
    command = [sys.executable, "-m", "kitlib.cli", "doctor", "--address", address, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert not said["failures"]
    return {one["kind"] for one in said["findings"] if one["severity"] != "info"}, done.returncode


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("address", "fault"), [(name, name) for name in FAULTS], indirect=["address"])
def test_the_planted_fault_is_named(address: str, fault: str) -> None:
    deadline = time.monotonic() + 240
    seen: set[str] = set()
    while not seen & FAULTS[fault]:
        assert time.monotonic() < deadline, f"{fault}: only {seen} was said"
        try:
            kinds, _ = kinds_seen(address)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            kinds = set()  # the queue is not up yet
        seen |= kinds
