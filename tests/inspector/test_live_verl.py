"""kitlib inspect beside a real run of verl on Ray, which loses the reward of one row."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIVE_VERL = ROOT.parent / "shared" / "verl_live" / "live_verl.py"
FAULT = ["--adv", "grpo", "--fault", "drop_field", "--fault-step", "1", "--steps", "2", "--hold", "300"]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a run that has crashed in its first advantage and keeps its queue."""
    if not LIVE_VERL.exists():
        pytest.skip(f"{LIVE_VERL} is not here")
    pytest.importorskip("verl", reason="verl is not installed")
    pytest.importorskip("ray", reason="ray is not installed")
    with open(tmp_path / "log", "w") as log:
        command = [sys.executable, str(LIVE_VERL), *FAULT, "--workdir", str(tmp_path)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 200
        while "queue kept alive" not in (tmp_path / "log").read_text(errors="replace"):
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.5)
        yield (tmp_path / "address").read_text().strip()
    finally:
        process.terminate()
        process.wait(timeout=60)


def inspect(*words: str) -> str:
    """The command as a user starts it, in a process of its own."""
    command = [sys.executable, "-m", "kitlib.cli", "inspect", "--once", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_row_that_lost_its_reward_is_named(address: str, tmp_path: Path) -> None:
    run = ["--address", address, "algorithm.adv_estimator=grpo"]
    seen = inspect(*run, "--stage", "compute_advantage", "presence", "staleness", "key")
    assert "NOT READY: 1 of 12 rows lacks rm_scores" in seen
    assert "versions  rows  behind" in seen and "this view reads recorded events" in seen
    board = inspect(*run, "--values", "groups")
    assert "no rm_scores on " in board and "mean reward" in board
    inspect(*run, "--html", str(tmp_path / "out.html"))
    assert "12 rows" in (tmp_path / "out.html").read_text()
