"""Recordings: what was recorded comes back, in another process too, bounded, without pickle, also half written."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kitlib.contract import StageRecord
from kitlib.inspector import (
    EmptyTimelineError,
    Recorder,
    RecordingError,
    Span,
    group_board,
    key_life,
    open_recording,
    presence,
    provenance,
    record,
    stage_card,
    stage_table,
    tokens,
    why_waiting,
)
from kitlib.inspector.recorded_config import RecordedConfig
from kitlib.inspector.recorded_wait import RecordedWait
from kitlib.replay_buffer.waiting import BlockingPrompt, WaitReport
from kitlib.transfer_queue import QueueRuntimeError, TransferQueue, acting_as, take_snapshot, watch
from tests.inspector.queues import GRPO, board_queue, put_row

VALUES = ("rm_scores", "response_mask", "advantages", "responses", "uid")


def ended(stage: str, step: int = 1) -> StageRecord:
    return StageRecord(stage, step, time.time(), 2, "train", 0.01)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with record(board_queue({"f3a1": [1, 0]}), tmp_path / "recording", VALUES, tick=60) as made:
        yield made


def run_two_stages(recorder: Recorder) -> None:
    with acting_as(stage="generate_sequences", worker="agent-loop-0"):
        put_row(recorder.tq, "9c02_0_0", 1.0, advantage=0.5)
    recorder.mark("sample", 1, ended("sample"))
    with acting_as(stage="clear"):
        recorder.tq.kv_clear(["f3a1_1_0"], "train")
    recorder.mark("clear", 1, ended("clear"))


def test_views_of_a_recording_are_those_of_the_queue(recorder: Recorder) -> None:
    with acting_as(stage="generate_sequences", worker="agent-loop-0"):
        put_row(recorder.tq, "9c02_0_0", 1.0, advantage=0.5)
    live = {
        "presence": presence(recorder.tq, "compute_advantage", GRPO).text(),
        "board": group_board(recorder.tq, 2).text(),
        "life": key_life(recorder.tq.log.events()[:1], "9c02_0_0").text(),
    }
    recorder.mark("sample", 1, ended("sample"))
    recorder.tq.kv_clear(["f3a1_0_0", "f3a1_1_0", "9c02_0_0"], "train")
    recorder.close()
    recording = open_recording(recorder.folder)
    moment = recording.find("sample", 1)
    assert presence(moment, "compute_advantage", GRPO).text() == live["presence"]
    assert group_board(moment, 2).text() == live["board"]
    assert key_life(recording.events()[:1], "9c02_0_0").text() == live["life"]
    assert "9c02_0_0  reward 1  advantage +0.50" in tokens(moment, "9c02_0_0").headline


def test_moments_follow_the_stages(recorder: Recorder) -> None:
    run_two_stages(recorder)
    recording = open_recording(recorder.folder)
    assert [(one.label, one.step) for one in recording.moments] == [("sample", 1), ("clear", 1)]
    assert str(recording.last) == "step 1 after clear"
    assert [len(one.snapshot().partitions["train"].keys) for one in recording.moments] == [3, 2]
    assert [name for name, _ in recording.history()] == ["sample", "clear"]
    assert stage_table(recording.history(), GRPO).model.tables
    assert [one.stage for one in recording.stage_records] == ["sample", "clear"]
    assert "cleared by clear" in key_life(recording, "f3a1_1_0").headline
    assert "agent-loop-0" in provenance(recording, "advantages").text(200)
    assert "1 run; the last took 10.0 ms" in stage_card("clear", records=recording.stage_records).text(200)
    with pytest.raises(RecordingError, match="there are: sample, clear"):
        recording.find("balance_batch")


def test_a_queue_that_has_not_changed_shares_a_picture(recorder: Recorder) -> None:
    recorder.mark("sample", 1, ended("sample"))
    recorder.mark("update_weights", 1, ended("update_weights"))
    recording = open_recording(recorder.folder)
    assert [one.label for one in recording.moments] == ["sample", "update_weights"]
    assert len(list((recorder.folder / "snapshots").iterdir())) == 1


def test_the_begin_of_a_stage_is_a_record_and_no_moment(recorder: Recorder) -> None:
    recorder.mark("sample", 1, StageRecord("sample", 1, time.time(), 0))
    recording = open_recording(recorder.folder)
    assert recording.moments == () and [one.seconds for one in recording.stage_records] == [None]
    with pytest.raises(RecordingError, match="holds no picture of the queue yet"):
        presence(recording)


def test_it_can_be_read_while_it_is_written_and_a_torn_line_is_left_out(recorder: Recorder) -> None:
    run_two_stages(recorder)
    recording = open_recording(recorder.folder)
    num_events = len(recording.events())
    recorder.tq.kv_put("f3a1_0_0", "train", None, {"mine": 1})
    recorder.mark("later", 2)
    with open(recorder.folder / "log" / "000000.jsonl", "a", encoding="utf-8") as file:
        file.write('{"event": {"num')
    assert len(recording.events()) == num_events and len(recording.moments) == 2
    assert recording.refresh()
    assert len(recording.events()) == num_events + 1 and recording.last.label == "later"
    assert not recording.refresh(), "a torn line is no news"
    assert [len(one.partitions["train"].keys) for one in recording.snapshots[1:]] == [2, 2]


def test_values_only_if_asked_for_and_only_tensors(tmp_path: Path, recorder: Recorder) -> None:
    run_two_stages(recorder)
    moment = open_recording(recorder.folder).find("sample")
    data = moment.kv_batch_get(["9c02_0_0", "f3a1_0_0"], "train", ["rm_scores", "advantages"])  # type: ignore[attr-defined]
    assert list(data.keys()) == ["rm_scores"], "advantages stand on one of the rows only"
    assert [row.tolist() for row in data["rm_scores"].unbind()] == [[0, 0, 0, 1]] * 2
    with record(board_queue({"f3a1": [1, 0]}), tmp_path / "bare", tick=60) as bare:
        bare.mark("sample")
    moment = open_recording(tmp_path / "bare").last
    assert not hasattr(moment, "kv_batch_get")
    assert "or a recording with values" in group_board(moment).text(200)


def test_a_watched_queue_keeps_its_log_and_the_recorder_stays_out_of_it(tmp_path: Path) -> None:
    tq = watch(TransferQueue())
    put_row(tq, "f3a1_0_0", 1.0)
    with record(tq, tmp_path / "recording", VALUES, tick=60) as recorder:
        assert recorder.tq is tq
        recorder.mark("sample")
    assert [event.verb for event in open_recording(tmp_path / "recording").events()] == ["kv_put"]


def test_the_folder_stays_small_and_the_newest_stays(tmp_path: Path) -> None:
    with record(TransferQueue(), tmp_path / "recording", max_bytes=60_000, tick=60) as recorder:
        for step in range(100):
            put_row(recorder.tq, f"u{step}_0_0", 1.0)
            recorder.mark("sample", step)
    assert sum(path.stat().st_size for path in (tmp_path / "recording").rglob("*.*")) < 80_000
    recording = open_recording(tmp_path / "recording")
    assert 2 < len(recording.moments) < 100 and recording.last.step == 99
    assert recording.events()[-1].keys == ("u99_0_0",) and recording.events()[0].number > 0
    assert "has fallen out" in key_life(recording, "u99_0_0").text()


def test_a_change_between_marks_is_pictured_by_the_thread(tmp_path: Path) -> None:
    with record(TransferQueue(), tmp_path / "recording", tick=0.02) as recorder:
        recorder.tq.kv_put("u_0_0", "train", {"x": torch.zeros(1)})
        deadline = time.monotonic() + 120
        while not any("train" in one.partitions for one in open_recording(recorder.folder).snapshots):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    last = open_recording(recorder.folder).last
    assert last.label == "" and "u_0_0" in last.snapshot().partitions["train"]


def report(**changes: object) -> WaitReport:
    prompt = BlockingPrompt("f3a1", "running", 1, 2, 0, True)
    told = {"can_end": True, "verdict": "Yes, it is slow.", "blocking": (prompt,), **changes}
    return WaitReport(request="sample(train, 2 prompts): 1 of 2 ready", counts="running 1", **told)  # type: ignore[arg-type]


def test_what_sample_waited_for_is_kept_until_it_has_its_batch(recorder: Recorder) -> None:
    recorder.mark("sample", 1, StageRecord("sample", 1, time.time(), 0))
    recorder.waiting = report
    recorder.mark("between", 1)
    recorder.waiting = None
    recorder.mark("sample", 1, ended("sample"))
    recording = open_recording(recorder.folder)
    between, after = recording.moments
    live = why_waiting(report(), recorder.tq.log).text(200)
    assert why_waiting(recording.waiting_at(between), recording).text(200) == live
    assert recording.waiting_at(after) is None
    assert "nobody waits" in why_waiting(recording.waiting_at(after)).headline


def test_a_failure_shows_the_last_wait(recorder: Recorder) -> None:
    recorder.mark("sample", 1, StageRecord("sample", 1, time.time(), 0))
    recorder.waiting = lambda: report(can_end=False, verdict="Not by itself.")
    recorder.mark("", 1)
    recorder.waiting = None
    recorder.mark("sample", 1, StageRecord("sample", 1, time.time(), 0, None, 0.1, "SampleError: stuck"))
    recorder.fail(RuntimeError("stuck"))
    recording = open_recording(recorder.folder)
    assert "WILL NOT END BY ITSELF" in why_waiting(recording.waiting_at(recording.last)).headline


def test_a_queue_that_stands_still_is_told_when_its_wait_has_changed(recorder: Recorder) -> None:
    recorder.waiting = report
    for changes, num_marks in (({}, 1), ({}, 1), ({"can_end": False}, 2), ({"can_end": False}, 2)):
        recorder.waiting = lambda changes=changes: report(**changes)
        recorder._last_mark = -10.0
        recorder._look()
        assert len(open_recording(recorder.folder).moments) == num_marks
    assert len(list((recorder.folder / "snapshots").iterdir())) == 1


def test_many_prompts_in_flight_are_cut_and_counted() -> None:
    many = tuple(BlockingPrompt(f"u{i}", "running", 1, 2, 0, None) for i in range(1000))
    wait = RecordedWait.of(report(blocking=many))
    assert len(wait.blocking) == 200 and wait.counts == "running 1 (200 of 1,000 in flight recorded)"


def test_the_time_line_comes_back(recorder: Recorder) -> None:
    with pytest.raises(EmptyTimelineError):
        open_recording(recorder.folder).timeline()
    run_two_stages(recorder)
    stages = open_recording(recorder.folder).timeline()
    assert [(one.lane, one.kind, one.name) for one in stages.spans] == [
        ("driver", "wait", "sample"),
        ("driver", "work", "clear"),
    ], "without spans the stages are there"
    request = Span("server-0", "request", "r1", time.time(), time.time() + 1, 3, {"tokens": 7, "stop": None})
    recorder.span(request)
    recorder.mark("later")
    assert open_recording(recorder.folder).timeline().spans == (request,)


def test_the_time_line_of_a_run_that_went_on_has_all_its_parts(tmp_path: Path) -> None:
    """Each part is a recording beside the other; whichever is opened, the time line is that of the run."""
    for number, name in enumerate(("recording", "recording-1", "recording-2")):
        with record(TransferQueue(), tmp_path / name, tick=60) as one:
            if number != 1:  # the second attempt has failed before its first stage
                one.span(Span("driver", "work", "update_actor", 100.0 + 9 * number, 101.0 + 9 * number, number + 1))
        if number == 0:
            assert open_recording(tmp_path / name).timeline().pauses == ()
    for name in ("recording", "recording-1", "recording-2"):
        whole = open_recording(tmp_path / name).timeline()
        assert [one.step for one in whole.spans] == [1, 3] and whole.pauses[0].seconds == 17.0
        assert whole.seconds == pytest.approx(2.0)
    other = (tmp_path / "recording-2").rename(tmp_path / "recording-of-another")
    assert [one.step for one in open_recording(other).timeline().spans] == [3]


class Gone:
    """A queue of somebody else's run, which ends."""

    def __init__(self) -> None:
        self.looks = 0

    def snapshot(self, partition_id: str | None = None) -> object:
        self.looks += 1
        if self.looks > 1:
            raise QueueRuntimeError("the controller is gone: the run has ended")
        return take_snapshot(TransferQueue())


def test_a_queue_that_goes_away_ends_the_thread_with_a_note(tmp_path: Path) -> None:
    with record(Gone(), tmp_path / "recording", tick=0.01) as recorder:
        deadline = time.monotonic() + 120
        while recorder._thread.is_alive() and time.monotonic() < deadline:
            recorder._last_mark = -10.0
            time.sleep(0.01)
        assert not recorder._thread.is_alive()
    assert "the run has ended" in (tmp_path / "recording" / "log" / "000000.jsonl").read_text()


def test_failure_is_kept_with_its_traceback(recorder: Recorder) -> None:
    with pytest.raises(ValueError) as raised:
        raise ValueError("rows lack rm_scores \ud800")
    assert recorder.fail(raised.value, "running tasks: 1") == recorder.folder
    recording = open_recording(recorder.folder)
    assert "test_recorder.py" in recording.failure and "ValueError: rows lack rm_scores" in recording.failure
    assert recording.tasks == "running tasks: 1" and recording.last.label == "failure"
    assert "python" in recording.header["versions"] and "torch" in recording.header["versions"]


def test_after_a_failure_no_picture_follows(recorder: Recorder) -> None:
    """Not even of what the sessions in flight still write while the run is taken down."""
    recorder.fail(ValueError("no"))
    put_row(recorder.tq, "9c02_0_0", 1.0)
    recorder._last_mark = -10.0
    recorder._look()
    assert open_recording(recorder.folder).last.label == "failure"


def test_other_folders_are_refused(tmp_path: Path, recorder: Recorder) -> None:
    with pytest.raises(RecordingError, match=r"recording.json cannot be read"):
        open_recording(tmp_path)
    with pytest.raises(RecordingError, match="holds a recording already"):
        record(TransferQueue(), recorder.folder)
    header = json.loads((recorder.folder / "recording.json").read_text())
    (recorder.folder / "recording.json").write_text(json.dumps({**header, "version": 99}))
    with pytest.raises(RecordingError, match="says something else"):
        open_recording(recorder.folder)
    (recorder.folder / "recording.json").write_text("[")
    with pytest.raises(RecordingError, match="is no JSON"):
        open_recording(recorder.folder)


def test_a_recording_opens_in_a_process_without_ray_cuda_or_pickle(recorder: Recorder) -> None:
    run_two_stages(recorder)
    recorder.close()
    code = f"""
import pickle, sys
from kitlib.inspector import open_recording, presence, key_life, group_board
def refuse(*args, **kwargs): raise AssertionError("unpickled")
pickle.load = pickle.loads = pickle.Unpickler = refuse
recording = open_recording({str(recorder.folder)!r})
assert presence(recording).model.tables and key_life(recording, "9c02_0_0").model.tables
assert group_board(recording.last).model.tables
assert not {{"ray", "transfer_queue", "transformers", "omegaconf"}} & set(sys.modules), "imported"
import torch
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_config_is_read_back_with_its_origins() -> None:
    from kitlib.config import load_config

    words = {"data.train_batch_size": 32, "algorithm.kl_ctrl.kl_coef": 0.5, "trainer.project_name": "a # b"}
    config = load_config(words)
    read = RecordedConfig(config.to_yaml())
    flat = config.to_flat()
    assert {key: read.to_flat().get(key) for key in flat if flat[key] != {}} == {
        k: v for k, v in flat.items() if v != {}
    }
    assert all(read.origin(key) == str(config.origin(key)) for key in flat)
    assert read.select("data.train_batch_size") == 32 and read.select("data.nothing", 7) == 7
