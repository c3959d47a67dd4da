"""The recording of a run, and what a failed run leaves behind."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kitlib.agent_loop.ledger import TaskLedger
from kitlib.cli import main
from kitlib.inspector import byte_ledger, group_board, open_recording, presence, provenance, stage_card
from kitlib.run import check_run, train
from kitlib.run.recording import describe_tasks
from kitlib.trainer.stages import PPOStages
from kitlib.transfer_queue import KVBatchMeta
from tests.trainer.conftest import small_config


def quiet(run_dir: Path, **overrides: Any) -> Any:
    plain = {"kitlib__run_dir": str(run_dir), "trainer__val_before_train": False, "trainer__test_freq": -1}
    return small_config(**{**plain, **overrides})


def test_a_run_is_recorded_and_every_call_is_signed(tmp_path: Path) -> None:
    config = quiet(tmp_path, kitlib__record_values=["rm_scores"])
    train(config, Console(file=io.StringIO()))
    recording = open_recording(tmp_path / "recording")
    assert {event.who.get("stage", "unsigned") for event in recording.events() if event.keys} == {
        "submit_batch_to_rollout",
        "generate_sequences",
        "sample",
        "compute_old_log_prob",
        "compute_advantage",
        "update_actor",
        "compute_metrics",
        "log_rollout_data",
        "clear",
    }
    assert [name for name, _ in recording.history(2)][-2:] == ["log_rollout_data", "clear"]
    moment = recording.find("compute_old_log_prob", 2)
    assert "READY: all 16 rows" in presence(moment, "compute_advantage", recording.config).headline
    assert "16 rows  n 4  mean reward" in group_board(moment, config=recording.config).text(200)
    assert "last written by generate_sequences, cleared" in provenance(recording, "rm_scores").headline
    assert "times as much" in byte_ledger(recording).headline
    whole = recording.timeline()
    assert whole.lanes == ("driver", "rank-0", "server-0")
    assert sum(span.name == "update_weights" for span in whole.spans) == 3, "once before the first step"
    assert whole.headline in (tmp_path / "timeline.html").read_text(), "as the run has drawn it"
    assert recording.failure == ""
    for stage in ("compute_old_log_prob", "compute_advantage", "update_actor"):
        assert stage_card(stage, recording.config, events=recording).text(400).count("as in the contract") == 2


def test_the_doctor_looks_at_the_rows_of_a_run_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its queue is empty, which proves nothing: the last moment with rows counts, for the seven questions too."""
    fields = ["uid", "rm_scores", "response_mask", "old_log_probs", "rollout_log_probs", "advantages"]
    train(quiet(tmp_path / "runs" / "mine", kitlib__record_values=fields), Console(file=io.StringIO()))
    monkeypatch.chdir(tmp_path)
    assert main(["doctor"]) == 0, "without a name: the newest run below this folder"
    said = capsys.readouterr().out
    assert said.startswith("step 2 after log_rollout_data  runs/mine/recording\n")
    assert "train 16 in" in said
    found = check_run(tmp_path)
    assert found.answers[6].state == "ok" and "advantages comes out the same" in found.answers[6].says


def test_the_doctor_and_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "nowhere/x"]) == 2
    assert "there is no file or folder 'nowhere/x'" in capsys.readouterr().err


def _fail(self: PPOStages, batch: KVBatchMeta) -> KVBatchMeta:
    raise RuntimeError("no such luck")


@pytest.mark.parametrize("recorded", [True, False])
def test_a_failed_run_leaves_a_post_mortem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool) -> None:
    monkeypatch.setattr("kitlib.trainer.sync.PPOTrainerSync.compute_advantage", _fail)
    out = io.StringIO()
    with pytest.raises(RuntimeError, match="no such luck"):
        train(quiet(tmp_path, kitlib__record=recorded), Console(file=out, width=300))
    assert f"kitlib inspect {tmp_path / 'recording'}" in out.getvalue()
    recording = open_recording(tmp_path / "recording")
    assert recording.failure.rstrip().endswith("RuntimeError: no such luck") and "_fail" in recording.failure
    assert recording.tasks.startswith("running tasks: 0\nfailed tasks: 0")
    assert recording.last.label == "failure"
    assert "READY: all 16 rows" in presence(recording, "compute_advantage", recording.config).headline
    assert recording.config is not None and recording.config.select("actor_rollout_ref.rollout.n") == 4
    assert bool(recording.events()) is recorded


def test_a_run_that_cannot_start_leaves_its_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nowhere"):
        train(quiet(tmp_path, actor_rollout_ref__model__path=str(tmp_path / "nowhere")), Console(file=io.StringIO()))
    assert "nowhere" in open_recording(tmp_path / "recording").failure


def test_a_run_that_goes_on_keeps_the_first_recording(tmp_path: Path) -> None:
    (tmp_path / "recording").mkdir()
    out = io.StringIO()
    train(quiet(tmp_path, trainer__val_only=True, trainer__val_before_train=True), Console(file=out))
    assert open_recording(tmp_path / "recording-1").moments
    assert f"{tmp_path}/recording-1  queue calls" in out.getvalue(), "the report names the one of this part"


def test_tasks_as_text() -> None:
    ledger = TaskLedger()

    async def bad() -> None:
        raise ValueError("a tool that is not there")

    async def run() -> str:
        failed = ledger.spawn(bad(), name="session", uid="u1", session_id=3)
        await asyncio.gather(failed, return_exceptions=True)
        waiting = ledger.spawn(asyncio.sleep(60), name="prompt", uid="u2")
        await asyncio.sleep(0)
        text = describe_tasks(ledger)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return text

    lines = asyncio.run(run()).splitlines()
    assert lines[0] == "running tasks: 1" and lines[1].startswith("  prompt u2  for ")
    assert lines[2] == "failed tasks: 1" and lines[3].startswith("  session u1_3  after ")
    assert lines[3].endswith("ValueError: a tool that is not there")
    assert any("in bad" in line for line in lines)


def test_tasks_that_failed_in_one_place_show_it_once() -> None:
    ledger = TaskLedger()

    async def bad(word: str) -> None:
        raise ValueError(word)

    async def run() -> str:
        failed = [ledger.spawn(bad(word), name="session", uid="u1", session_id=n) for n, word in enumerate("abc")]
        await asyncio.gather(*failed, return_exceptions=True)
        return describe_tasks(ledger)

    text = asyncio.run(run())
    assert text.count("raise ValueError(word)") == 1 and text.count("in the same place as session u1_0") == 2
    assert all(f"ValueError: {word}\n" in text for word in "abc")
    assert "\n\n" not in text
