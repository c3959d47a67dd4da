"""The doctor at stage borders: silent while all goes well, beside the error when a stage fails, and cheap."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from tensordict import TensorDict

from kitlib import TaskRunner
from kitlib.contract import StageRecord
from kitlib.errors import KitError, add_remark
from kitlib.inspector import open_recording
from kitlib.run import train
from kitlib.trainer.border_doctor import LOOKED_AT, BorderDoctor
from kitlib.trainer.sync import PPOTrainerSync
from kitlib.transfer_queue import KVBatchMeta, TransferQueue, jagged

from ..inspector.doctor.cases import put
from ..inspector.doctor.healthy import rows_of, state
from .conftest import small_config


def trainer_of(raw: dict[str, Any], strict: bool = True) -> Any:
    tq = TransferQueue()
    put(raw, tq)
    return SimpleNamespace(tq=tq, config=raw["config"], global_steps=raw["global_steps"], strict=strict)


def run_stage(watcher: BorderDoctor, trainer: Any, name: str, error: str | None = None) -> StageRecord:
    record = StageRecord(name, trainer.global_steps, time.time(), 0)
    watcher.on_stage(trainer, record)
    record.seconds, record.error = 0.1, error
    watcher.on_stage(trainer, record)
    return record


def test_finding_stands_beside_the_error() -> None:
    raw = state("advantage", 3, 4, seed=0)
    del rows_of(raw)[4]["fields"]["rm_scores"]
    watcher = BorderDoctor()
    record = run_stage(watcher, trainer_of(raw), "compute_advantage", "KeyError: 'rm_scores'")
    assert record.error is not None and record.error.startswith("KeyError")
    assert rows_of(raw)[4]["key"] in record.error and "field_missing" in record.error
    assert watcher.failure is not None and watcher.failure.errors[0].fields == ("rm_scores",)


def test_what_only_values_show_is_seen_when_the_stage_fails() -> None:
    raw = state("advantage", 3, 4, seed=0)
    rows_of(raw)[4]["fields"]["rm_scores"]["values"][-1] = "nan"
    watcher = BorderDoctor()
    assert "nan_reward" in str(run_stage(watcher, trainer_of(raw), "compute_advantage", "ValueError").error)
    assert watcher.seen is not None and watcher.seen.ok  # no value is read before a stage


def test_a_sound_queue_is_not_blamed() -> None:
    watcher = BorderDoctor()
    record = run_stage(watcher, trainer_of(state("advantage", 3, 4, 0)), "compute_advantage", "OSError")
    assert record.error == "OSError" and watcher.failure is None


def test_only_a_strict_run_is_looked_at() -> None:
    watcher = BorderDoctor()
    run_stage(watcher, trainer_of(state("advantage", 3, 4, 0), strict=False), "compute_advantage", "OSError")
    assert watcher.seen is None and watcher.failure is None


def test_a_queue_without_a_picture_is_left_alone() -> None:
    trainer = SimpleNamespace(tq=object(), config={}, global_steps=1, strict=True)
    assert run_stage(BorderDoctor(), trainer, "compute_advantage", "OSError").error == "OSError"


def test_a_look_is_cheap() -> None:
    """128 rows; the looks of a step (three with GRPO) stay below 1% of a step of 0.6 s; bench/doctor.py measures it.

    Here the calls of functions are counted, which is the same on every machine: 4,000 of them take 1 ms.
    """
    trainer, watcher = trainer_of(state("advantage", 16, 8, 0)), BorderDoctor()
    run_stage(watcher, trainer, "compute_advantage")
    num_calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run_stage(watcher, trainer, "compute_advantage")
    finally:
        sys.setprofile(None)
    assert num_calls < 8000


# Whole runs


def quiet(run_dir: Path, **overrides: Any) -> Any:
    return small_config(
        **{"kitlib__run_dir": str(run_dir), "trainer__val_before_train": False, "trainer__test_freq": -1, **overrides}
    )


def longer_mask(self: PPOTrainerSync, batch: KVBatchMeta) -> KVBatchMeta:
    """One row gets a mask of the wrong length, as an agent loop of one's own may write it."""
    mask = TensorDict({"response_mask": jagged([torch.ones(77, dtype=torch.int64)])}, batch_size=[1])
    self.tq.kv_batch_put(keys=[batch.keys[1]], partition_id="train", fields=mask)
    return batch


@pytest.mark.parametrize("recorded", [True, False])
def test_the_finding_is_in_the_raised_message_and_in_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    monkeypatch.setattr(PPOTrainerSync, "balance_batch", longer_mask)
    with pytest.raises(Exception) as caught:
        train(quiet(tmp_path, kitlib__record=recorded), Console(file=io.StringIO()))
    raised = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    recording = open_recording(tmp_path / "recording")
    (finding,) = (one for one in recording.diagnosis["findings"] if one["severity"] == "error")
    assert finding["kind"] == "length_mismatch" and len(finding["keys"]) == 1
    for text in (raised, recording.failure if hasattr(caught.value, "add_note") else raised):
        assert "length_mismatch" in text and finding["keys"][0] in text and "response_mask 77" in text
    if recorded:
        assert "length_mismatch" in str(recording.stage_records[-1].error)


def lose_the_reward(self: PPOTrainerSync, batch: KVBatchMeta) -> KVBatchMeta:
    """One row of the batch is written anew without its reward."""
    key = batch.keys[3]
    data = self.tq.kv_batch_get(keys=[key], partition_id="train").exclude("rm_scores")
    self.tq.kv_clear(keys=[key], partition_id="train")
    self.tq.kv_batch_put(keys=[key], partition_id="train", fields=data, tags=[batch.tags[3]])
    return batch


def test_a_refusal_of_the_contract_says_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPOTrainerSync, "balance_batch", lose_the_reward)
    runner = TaskRunner()
    trainer = runner.start(small_config(trainer__val_before_train=False))
    try:
        with pytest.raises(KitError) as caught:
            trainer.fit()
    finally:
        runner.close()
    assert "compute_advantage needs rm_scores" in str(caught.value) and "field_missing" in str(caught.value)


def test_a_dead_task_is_cause_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompts that its end leaves unfinished are no finding of their own."""
    from kitlib.reward import RewardLoopWorker

    async def fails(self: RewardLoopWorker, outputs: Any, row: Any) -> Any:
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(RewardLoopWorker, "compute_score", fails)
    with pytest.raises(KitError, match="no such luck") as caught:
        TaskRunner().run(small_config(trainer__val_before_train=False))
    assert "The doctor" not in str(caught.value)


def test_a_sound_run_has_a_doctor_that_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def on_stage(self: BorderDoctor, trainer: Any, record: StageRecord) -> None:
        original(self, trainer, record)
        if record.seconds is None and self.seen is not None:
            assert self.seen.ok and not self.seen.examination.failures
            looked.append(record.stage)

    original = BorderDoctor.on_stage
    monkeypatch.setattr(BorderDoctor, "on_stage", on_stage)
    TaskRunner().run(small_config(trainer__val_before_train=False))
    assert {"compute_old_log_prob", "compute_advantage", "update_actor"} <= set(looked) <= set(LOOKED_AT)


def test_a_remark_is_in_the_message_of_our_errors_and_a_note_of_others() -> None:
    ours, other = KitError("it is missing"), KeyError("x")
    add_remark(ours, "  look here")
    add_remark(other, "  look here")
    assert str(ours) == "it is missing\n  look here" and str(other) == "'x'"
    assert other.__notes__ == ["  look here"]  # type: ignore[attr-defined]
