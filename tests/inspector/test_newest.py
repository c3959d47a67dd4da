"""Which run is meant where none is named: one that ended at its start is passed over, and that is said."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from kitlib import cli
from kitlib.inspector import record
from kitlib.inspector.doctor import doctor
from kitlib.inspector.newest import newest_recording
from kitlib.inspector.scene import open_scene
from kitlib.inspector.terminal import Screen, page_of
from kitlib.transfer_queue import TransferQueue
from tests.inspector.queues import board_queue


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/a has recorded rows; the working directory is above it."""
    with record(board_queue({"f3a1": [1, 0]}), tmp_path / "runs" / "a" / "recording", tick=60) as recorder:
        recorder.mark("sample", 1)
    aged(tmp_path / "runs" / "a" / "recording", -1)
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def aged(place: Path, minutes: float) -> None:
    """Everything in a folder was written so many minutes from now."""
    at = time.time() + 60 * minutes
    for path in [place, *place.rglob("*")]:
        os.utime(path, (at, at))


def fail_at_start(run_dir: Path, minutes: float = 1, error: str = "no model folder '/nowhere'") -> Path:
    with record(TransferQueue(), run_dir / "recording", tick=60) as recorder:
        recorder.fail(ValueError(error))
    aged(run_dir / "recording", minutes)
    return run_dir / "recording"


def test_a_run_that_failed_at_its_start_is_passed_over_with_its_error(runs: Path) -> None:
    failed = fail_at_start(runs / "b")
    found = newest_recording()
    assert found.path == runs / "a" / "recording"
    assert found.passed_over == (
        f"{failed} is newer and was passed over: it failed before there was a row in its queue, "
        f"ValueError: no model folder '/nowhere'. This is {runs / 'a' / 'recording'}"
    )
    fail_at_start(runs / "c", 2, "another")
    said = newest_recording().passed_over
    assert f"{runs / 'c' / 'recording'} is newer" in said and "(1 more): " in said and "another" in said


def test_an_older_failure_and_a_named_one_are_not_passed_over(runs: Path) -> None:
    failed = fail_at_start(runs / "b", minutes=-2)
    assert newest_recording() == (runs / "a" / "recording", "")
    assert newest_recording(runs / "b") == newest_recording(failed) == (failed, "")


def test_a_failure_with_rows_is_what_one_wants_to_see(runs: Path) -> None:
    with record(board_queue({"9c02": [1, 0]}), runs / "b" / "recording", tick=60) as recorder:
        recorder.fail(ValueError("in the second step"))
    aged(runs / "b" / "recording", 1)
    assert newest_recording() == (runs / "b" / "recording", "")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("kitlib:\n  record: false\n", "it was not recorded (kitlib.record=false)"),
        ("trainer:\n  use_v1: false\n", "it is V0 (trainer.use_v1=false), which has no queue"),
        ("kitlib:\n  record: true\n", "it has no recording"),
    ],
)
def test_a_run_without_a_recording_is_told(runs: Path, config: str, why: str) -> None:
    (runs / "b").mkdir()
    (runs / "b" / "config.yaml").write_text(config)
    aged(runs / "b", 1)
    found = newest_recording()
    assert found.path == runs / "a" / "recording" and f"{runs / 'b'} is newer and was passed over: {why}." in (
        found.passed_over
    )
    aged(runs / "b", -2)
    assert newest_recording().passed_over == ""


def test_a_run_that_has_just_begun(runs: Path) -> None:
    with record(TransferQueue(), runs / "b" / "recording", tick=60):
        aged(runs / "b" / "recording", 1)
        assert "its queue has had no row yet" in newest_recording().passed_over


def test_every_door_says_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = fail_at_start(runs / "b")
    assert cli.main(["inspect", "--once"]) == 0
    out = capsys.readouterr().out
    assert f"{failed} is newer and was passed over" in out and "2 rows" in out
    for words in (["doctor"], ["doctor", "--check"]):
        cli.main(words)
        said = capsys.readouterr()
        assert f"kitlib: {failed} is newer and was passed over" in said.err and "passed over" not in said.out
    scene = open_scene(None)
    assert str(failed) in page_of(scene)
    with pytest.warns(UserWarning, match="passed over"):
        doctor(".")
    console = Console(file=io.StringIO(), width=200, height=7)
    console.print(Screen(scene).picture(console))
    shown = console.file.getvalue().rstrip("\n").split("\n")  # type: ignore[attr-defined]
    assert shown[1].startswith(f"{failed} is newer") and len(shown) == 6 and shown[-1].endswith("q quit")
