"""What other parts of kitlib know becomes a finding: the wait of `sample`, the report of a get, the phase of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kitlib.contract import StageRecord
from kitlib.inspector import open_recording, record
from kitlib.inspector.doctor import doctor
from kitlib.inspector.recorded_wait import RecordedPrompt, RecordedWait
from kitlib.transfer_queue import TransferQueue, explain_get

from .cases import put
from .healthy import markers_of, rows_of, state


def queue_of(raw: dict[str, Any]) -> TransferQueue:
    tq = TransferQueue()
    put(raw, tq)
    return tq


def wait(uid: str, is_live: bool | None) -> RecordedWait:
    prompt = RecordedPrompt(uid, "running", 3, 4, 0, is_live)
    return RecordedWait("sample(train, 4 prompts)", "running 1", (prompt,), bool(is_live), "Not by itself")


def unfinished() -> tuple[dict[str, Any], str]:
    """One of four prompts runs, and one of its four sessions has no row."""
    raw = state("sample", 4, 4, seed=3)
    one = markers_of(raw)[1]
    one["tag"]["status"] = "running"
    raw["partitions"]["train"].remove(next(row for row in rows_of(raw) if row["key"].startswith(one["key"])))
    return raw, one["key"]


@pytest.mark.parametrize(("is_live", "severity"), [(False, "error"), (True, None), (None, "warning")])
def test_the_wait_tells_slow_from_dead(is_live: bool | None, severity: str | None) -> None:
    raw, uid = unfinished()
    report = doctor(queue_of(raw), stage="sample", config=raw["config"], global_steps=7, waiting=wait(uid, is_live))
    assert [one.severity for one in report.of("stuck_prompt")] == ([severity] if severity else [])
    if is_live is False:
        assert "3 of 4 sessions have a row, and no task of it is running any more" in report.errors[0].says
        assert f"tq.kv_put(key='{uid}'" in report.errors[0].way_out


@pytest.mark.parametrize(("is_live", "is_stuck"), [(True, False), (None, True)])
def test_a_task_that_is_about_to_write_the_status_of_a_whole_prompt_is_not_stuck(
    is_live: bool | None, is_stuck: bool
) -> None:
    raw = state("sample", 4, 4, seed=3)
    one = markers_of(raw)[1]
    one["tag"]["status"] = "running"
    waiting = wait(one["key"], is_live)
    report = doctor(queue_of(raw), stage="sample", config=raw["config"], global_steps=7, waiting=waiting)
    assert bool(report.of("stuck_prompt")) is is_stuck


def test_the_report_of_a_get() -> None:
    raw = state("advantage", 3, 4, seed=0)
    row = rows_of(raw)[4]
    row["fields"]["rm_score"] = row["fields"].pop("rm_scores")
    tq = queue_of(raw)
    report = doctor(tq, request=explain_get(tq, [row["key"], "nobody_0_0"], ["rm_scores"], partition_id="train"))
    (missing,) = report.of("field_missing")
    assert (missing.keys, missing.fields) == ((row["key"],), ("rm_scores",))
    assert "there is rm_score on these rows: is it rm_scores, misspelt?" in missing.evidence
    assert [one.keys for one in report.of("fewer_rows_than_keys")] == [("nobody_0_0",)]


def recorded(folder: Path, stage: str, is_over: bool) -> Path:
    """A run in which a stage began a quarter of an hour ago, with all prompts running and no row."""
    raw = state("sample", 4, 4, seed=3)
    raw["partitions"]["train"] = markers_of(raw)
    for one in markers_of(raw):
        one["tag"]["status"] = "running"
    recorder = record(TransferQueue(), folder, tick=60)
    put(raw, recorder.tq)
    begin = StageRecord(stage, 6, time.time() - 900, 0)
    recorder.mark(stage, 6, begin)
    if is_over:
        begin.seconds = 2.0
        recorder.mark(stage, 6, begin)
    recorder.mark("")
    recorder.close()
    return folder


@pytest.mark.parametrize(("stage", "is_over"), [("update_weights", False), ("update_weights", True), ("sample", False)])
def test_a_stall_that_is_not_the_fault_of_the_queue(tmp_path: Path, stage: str, is_over: bool) -> None:
    report = doctor(open_recording(recorded(tmp_path / "recording", stage, is_over)))
    found = report.of("stalled_elsewhere")
    assert bool(found) is (stage == "update_weights" and not is_over)
    if found:
        assert "No row has been written since update_weights began" in found[0].says and len(found[0].keys) == 4


def test_the_folder_of_a_run_is_enough(tmp_path: Path) -> None:
    recorded(tmp_path / "run" / "recording", "update_weights", False)
    for folder in (tmp_path / "run" / "recording", tmp_path / "run"):
        assert doctor(folder).of("stalled_elsewhere")


def test_what_a_recorded_sample_waits_for(tmp_path: Path) -> None:
    """The stage need not be told: the recording knows that sample waits, and for whom."""
    raw, uid = unfinished()
    recorder = record(TransferQueue(), tmp_path / "recording", tick=60)
    recorder.waiting = lambda: wait(uid, False)
    put(raw, recorder.tq)
    recorder.mark("", 7)
    recorder.close()
    assert doctor(open_recording(tmp_path / "recording")).of("stuck_prompt")[0].severity == "error"
