"""Notebook 11: an interruption keeps what was made, checks name each planted mistake, the liar is the only one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.config import load_config
from kitlib.lessons import Answer, LessonError, wait_for_rollout
from kitlib.lessons.faults.fault import FaultError
from kitlib.lessons.sample_groups import ToyRefill, put_group
from kitlib.lessons.stay_on_policy import (
    Half,
    Interruption,
    check_dropped,
    check_kept,
    check_weights,
    interrupt_after,
    largest_difference,
    plant_false_version,
    run_steps,
)
from kitlib.replay_buffer import ReplayBufferAsync
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.task_runner import TaskRunner
from kitlib.transfer_queue import KVBatchMeta, TransferQueue, list_of_dict_to_tensordict

SETTINGS = [
    "trainer.v1.trainer_mode=colocate_async",
    "trainer.v1.colocate_async.num_warmup_batches=2",
    "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "trainer.logger=[]",
]


@pytest.fixture
def tq() -> Iterator[TransferQueue]:
    queue = TransferQueue()
    yield queue
    queue.close()


@pytest.fixture
def trainer() -> Iterator[PPOTrainer]:
    runner = TaskRunner()
    yield runner.start(load_config(SETTINGS))
    runner.close()


def words(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


class TestDropped:
    @pytest.fixture
    def buffer(self, tq: TransferQueue) -> ReplayBufferAsync:
        for uid, step, status in (("u1", 2, "finished"), ("u2", 4, "finished"), ("u5", 3, "finished")):
            put_group(tq, uid, (1.0, 0.0), status, step)
        put_group(tq, "u4", (1.0,), "running", 1)
        return ReplayBufferAsync(tq, max_off_policy_threshold=2, refill_fn=ToyRefill(tq, [(1.0, 0.0)] * 2, step=5))

    def test_right_and_so_it_goes(self, buffer: ReplayBufferAsync) -> None:
        assert check_dropped({"u1", "u5"}, buffer, 5).ok is True
        _, metrics = buffer.sample(5, "train", 1)
        assert metrics["training/off_policy/evicted_samples"] == 2
        assert buffer.refill_fn.calls == [2]  # type: ignore[union-attr]

    def test_open(self, buffer: ReplayBufferAsync) -> None:
        assert check_dropped(..., buffer, 5).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ({"u1_0_0", "u5"}, "u1_0_0 is the key of a row: name the prompt by its uid, u1"),
            ({"u1"}, "1 prompt still missing from your answer: a prompt spans step - submitted + 1"),
            ({"u1", "u2", "u5"}, "u2 spans 2 versions, which is the threshold itself"),
            ({"u1", "u4", "u5"}, "u4 is in flight: only a finished prompt is dropped"),
            ({"u1", "u5", "u9"}, "u9 has no marker here"),
            ("u1", "a set of uids"),
        ],
    )
    def test_wrong(self, buffer: ReplayBufferAsync, answer: Any, mistake: str) -> None:
        assert mistake in words(check_dropped(answer, buffer, 5))


class TestInterruption:
    def test_what_was_made_stays_and_the_server_goes_on(self, trainer: PPOTrainer) -> None:
        server = trainer.checkpoint_manager.replicas[0]
        trainer.global_steps = 1
        interruption = interrupt_after(server, 3)
        trainer.prepare_step()
        halves = interruption.wait()
        assert halves
        assert {len(half.token_ids) for half in halves} == {len(half.log_probs) for half in halves} == {3}
        trainer.checkpoint_manager.resume_generation_replicas()
        wait_for_rollout(trainer)
        keys = [key for key in trainer.tq.kv_list("train")["train"] if "_" in key]
        kept = interruption.kept(trainer.tq, keys)
        assert kept == dict.fromkeys(keys, 3)
        lengths = [len(trainer.tq.kv_batch_get([key], "train")["responses"].unbind()[0]) for key in kept]
        assert lengths == sorted(lengths, reverse=True)
        assert "step" not in vars(server._engine)

    def test_a_server_that_nobody_asks(self, trainer: PPOTrainer) -> None:
        with pytest.raises(LessonError, match="not asked for enough tokens within 0.01 s"):
            interrupt_after(trainer.checkpoint_manager.replicas[0], 3).wait(timeout=0.01)

    def test_a_half_is_a_beginning_of_tokens_and_log_probs(self) -> None:
        half = Half((5, 6), (-0.1, -0.2), 0)
        assert half.begins([5, 6, 7], [-0.1, -0.2, -0.3])
        assert not half.begins([5, 7, 7], [-0.1, -0.2, -0.3])
        assert not half.begins([5, 6, 7], [-0.1, -0.25, -0.3])


def test_the_steps_of_a_run_repeat_themselves(trainer: PPOTrainer) -> None:
    steps = run_steps(trainer, 3)
    ages = [step["training/off_policy/trajectory_staleness_worst/max"] for step in steps]
    assert ages == [0, 1, 2]  # two batches ahead
    assert not trainer.agent_loop_manager.ledger.running()


def test_a_step_of_separate_async_has_several_updates() -> None:
    runner, updates_a_step = TaskRunner(), ["trainer.v1.separate_async.parameter_sync_step=2"]
    pool = ["actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl"]
    changed = ["trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.actor.ppo_mini_batch_size=1"]
    try:
        trainer = runner.start(load_config([*SETTINGS, *updates_a_step, *pool, *changed]))
        updates = run_steps(trainer, 2)
        assert [update["training/global_step"] for update in updates] == [1, 1, 2, 2]
        assert len(trainer.tq.kv_list("train")["train"]) == 2 * (1 + 2)  # the batch ahead: markers and rows
    finally:
        runner.close()


class Stopped(Interruption):
    """An interruption that never was: three tokens of one request."""

    def __init__(self, half: Half) -> None:
        self.halves = [half]


class TestKept:
    """Eight response tokens, two of them a tool's; the first three had been made when the server was stopped."""

    @pytest.fixture
    def check(self, tq: TransferQueue) -> Any:
        row = {
            "responses": torch.arange(8),
            "rollout_log_probs": torch.linspace(0, 1, 8),
            "response_mask": torch.tensor([1, 1, 1, 1, 0, 0, 1, 1]),
        }
        tq.kv_put(key="u1_0_0", partition_id="train", fields=row)
        log_probs = tuple(row["rollout_log_probs"][:3].tolist())
        return lambda answer: check_kept(answer, Stopped(Half((0, 1, 2), log_probs, 0)), tq, "u1_0_0")

    def test_right(self, check: Any) -> None:
        assert all(check(answer).ok is True for answer in (3, 3.0, np.int32(3), torch.tensor([3])))
        assert check(...).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            (0, "are kept, not thrown away"),
            (8, "the tool's tokens included"),
            (6, "every token of the model"),
            (2, "count the lines at the beginning"),
            ("3", "a whole number"),
            (True, "a whole number"),
        ],
    )
    def test_wrong(self, check: Any, answer: Any, mistake: str) -> None:
        assert mistake in words(check(answer))

    def test_the_tokens_after_the_sync(self, tq: TransferQueue) -> None:
        row = {"responses": torch.arange(5), "rollout_log_probs": torch.zeros(5), "response_mask": torch.ones(5)}
        tq.kv_put(key="u1_0_0", partition_id="train", fields=row)
        answer = check_kept(3, Stopped(Half((0, 1), (0.0, 0.0), 0)), tq, "u1_0_0")
        assert "that many were made after the weight sync" in words(answer)


class TestWeights:
    OLD, ROLLOUT = torch.tensor([0.8, 0.5, 0.2, 0.8]).log(), torch.tensor([0.2, 0.5, 0.4, 0.8]).log()
    TOKEN = (2.0, 1.0, 0.5, 1.0)

    @pytest.mark.parametrize(
        "token", [[*TOKEN], (2, 1, 0.5, 1), torch.tensor(TOKEN), torch.tensor([TOKEN]), np.array(TOKEN)]
    )
    def test_right(self, token: Any) -> None:
        assert check_weights(token, 2.0, self.OLD, self.ROLLOUT, 2.0).ok is True
        assert check_weights(token, torch.tensor(2), self.OLD, self.ROLLOUT, 2.0).ok is True
        assert check_weights(token, ..., self.OLD, self.ROLLOUT, 2.0).ok is None

    @pytest.mark.parametrize(
        ("token", "sequence", "mistake"),
        [
            ([4.0, 1.0, 0.5, 1.0], 2.0, "token: these are the ratios before truncation"),
            ([0.25, 1.0, 2.0, 1.0], 2.0, "token: upside down"),
            ([2.0, 1.0, 0.7, 1.0], 2.0, "token: number 3 is not 0.7"),
            ([0.0, 1.0, 0.5, 1.0], 2.0, "token: a weight above the threshold becomes the threshold"),
            ([2.0, 1.0, 0.5, 1.0], 1.0, "sequence: that is the product of the truncated weights"),
            ([2.0, 1.0], 2.0, "token is a list of 4 numbers"),
            (2.0, 2.0, "token is a list of 4 numbers"),
            ("2.0", 2.0, "token is a list of 4 numbers"),
            (["2", "1", "0.5", "1"], 2.0, "token is a list of 4 numbers"),
            ([None, 1.0, 0.5, 1.0], 2.0, "token is a list of 4 numbers"),
            ([2.0, 1.0, 0.5, 1.0], [1.0, 2.0], "sequence is one number"),
            ([2.0, 1.0, 0.5, 1.0], 1.625, "sequence: that is the mean of the ratios"),
            ([2.0, 1.0, 0.5, 1.0], 6.5, "sequence: that is the sum of the ratios"),
            ([2.0, 1.0, 0.5, 1.0], 0.5, "sequence: upside down"),
            ([2.0, 1.0, 0.5, 1.0], 3.0, "sequence: not 3: multiply"),
            ([2.0, 1.0, 0.5, 1.0], "2", "sequence is one number"),
        ],
    )
    def test_wrong(self, token: Any, sequence: Any, mistake: str) -> None:
        assert mistake in words(check_weights(token, sequence, self.OLD, self.ROLLOUT, 2.0))

    def test_a_row_that_is_truncated(self) -> None:
        token = [1.5, 1.0, 0.5, 1.0]
        assert check_weights(token, 1.5, self.OLD, self.ROLLOUT, 1.5).ok is True
        assert "the product before truncation" in words(check_weights(token, 2.0, self.OLD, self.ROLLOUT, 1.5))


class TestFalseVersion:
    """Two rows of the newest weights, two of older ones; on a tool's token the difference does not count."""

    @pytest.fixture
    def batch(self, tq: TransferQueue) -> KVBatchMeta:
        gaps = {"aaaa1_0_0": 0.9, "aaaa1_1_0": 0.4, "bbbb1_0_0": 1e-6, "bbbb1_1_0": 0.0}
        rows = [
            {
                "old_log_probs": torch.tensor([-1.0, -1.0 + gap, 5.0]),
                "rollout_log_probs": torch.tensor([-1.0, -1.0, 0.0]),
                "response_mask": torch.tensor([1, 1, 0]),
            }
            for gap in gaps.values()
        ]
        versions = [(0, 1), (0, 0), (1, 1), (1, 1)]
        tags = [{"min_global_steps": oldest, "max_global_steps": newest} for oldest, newest in versions]
        tq.kv_batch_put(keys=[*gaps], partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
        return KVBatchMeta(keys=[*gaps], tags=tags, partition_id="train")

    def test_largest_difference_leaves_the_tool_out(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        assert list(largest_difference(tq, batch).values()) == pytest.approx([0.9, 0.4, 1e-6, 0.0], abs=1e-6)

    @pytest.mark.parametrize("seed", range(6))
    def test_one_old_row_lies_in_queue_and_handle(self, tq: TransferQueue, batch: KVBatchMeta, seed: int) -> None:
        before, data = tq.kv_list(), tq.kv_batch_get(batch.keys, "train")
        fault = plant_false_version(tq, batch, seed)
        listed = tq.kv_list("train")["train"]
        assert fault.key in ("aaaa1_0_0", "aaaa1_1_0")
        assert listed[fault.key] == {"min_global_steps": 1, "max_global_steps": 1}
        assert fault.batch is not None
        assert [listed[key] for key in fault.batch.keys] == fault.batch.tags
        assert fault.key not in repr(fault)
        fault.mend()
        assert tq.kv_list() == before
        again = tq.kv_batch_get(batch.keys, "train")
        pairs = zip(again["old_log_probs"].unbind(), data["old_log_probs"].unbind(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)

    def test_check(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        fault = plant_false_version(tq, batch)
        other = next(key for key in ("aaaa1_0_0", "aaaa1_1_0") if key != fault.key)
        assert fault.check(fault.key).ok is True
        assert fault.check(fault.key.replace("aaaa1", "aaaa")).ok is True
        assert fault.check([f" {fault.key}"]).ok is True
        assert fault.check(...).ok is None
        assert "its tag says v0, and old weights wrote it" in words(fault.check(other))
        assert "server and trainer agree to 1e-06" in words(fault.check("bbbb1_0_0"))
        assert "the batch has no row 'bbbb1'" in words(fault.check("bbbb1"))
        too_short = fault.key.replace("aaaa1", "")
        assert f"2 rows of the batch begin like {too_short!r}" in words(fault.check(too_short))

    def test_rows_of_one_version_cannot_lie(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        new = batch.select_keys(["bbbb1_0_0", "bbbb1_1_0"])
        with pytest.raises(FaultError, match="clearly different older ones"):
            plant_false_version(tq, new)
