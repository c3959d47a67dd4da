"""Lesson 03: its checks name each wrong answer, and a readable uid really loses its group."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kitlib.config import load_config
from kitlib.dataset import create_dataloaders
from kitlib.lessons.answers import Answer
from kitlib.lessons.submit_prompts import ReadableUid, check_marker_fields, check_pass, readable_uid
from kitlib.models import load_tokenizer
from kitlib.replay_buffer import ReplayBuffer
from kitlib.trainer.feeding import prompts_to_tensordict
from kitlib.transfer_queue import TransferQueue, take_snapshot


def said(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


@pytest.fixture(scope="module")
def loaders() -> list[Any]:
    """Ten rows, fetched by fours and one by one."""
    ten = ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.train_max_samples=10"]
    configs = [load_config([*ten, f"data.gen_batch_size={size}"]) for size in (4, 1)]
    tokenizer = load_tokenizer(configs[0].actor_rollout_ref.model.path)
    return [create_dataloaders(config, tokenizer)[0] for config in configs]


class TestPass:
    def test_right_and_open(self, loaders: list[Any]) -> None:
        assert check_pass(8, 10, *loaders).ok is True
        assert check_pass(..., 10, *loaders).ok is None
        assert check_pass(8, ..., *loaders).ok is None

    def test_wrong(self, loaders: list[Any]) -> None:
        assert "by fours: not 10: the last fetch would not be full" in said(check_pass(10, 10, *loaders))
        assert "by fours: not 2: that is the number of fetches" in said(check_pass(2, 10, *loaders))
        assert "by fours: not 12: nothing is filled up" in said(check_pass(12, 10, *loaders))
        assert "one by one: not 8: that would leave some out" in said(check_pass(8, 8, *loaders))
        assert "by fours: the answer is a number" in said(check_pass("8", 10, *loaders))
        assert len(check_pass(10, 8, *loaders).says) == 2


def prompts(num: int = 4) -> Any:
    return prompts_to_tensordict(
        {
            "raw_prompt": [[{"role": "user", "content": f"{i}*{i}=?"}] for i in range(num)],
            "data_source": ["kitlib/mult_tool"] * num,
            "index": list(range(10, 10 + num)),
            "dummy_tensor": torch.zeros(num, 1, dtype=torch.uint8),
        }
    )


class TestMarkerFields:
    def marked(self, *, with_rows: bool) -> tuple[Any, str]:
        tq, batch = TransferQueue(), prompts()
        uids = batch.get("uid").tolist()
        tags = [{"is_prompt": True, "status": "pending", "global_steps": 1}] * len(uids)
        tq.kv_batch_put(keys=uids, partition_id="train", fields=batch if with_rows else None, tags=tags)
        return take_snapshot(tq), uids[0]

    def test_right_and_open(self) -> None:
        snapshot, uid = self.marked(with_rows=True)
        truth = {"raw_prompt", "data_source", "index", "dummy_tensor", "uid"}
        assert check_marker_fields(truth, snapshot, uid).ok is True
        assert check_marker_fields(..., snapshot, uid).ok is None
        assert check_marker_fields(set(), *self.marked(with_rows=False)).ok is True

    def test_wrong(self) -> None:
        snapshot, uid = self.marked(with_rows=True)
        truth = {"raw_prompt", "data_source", "index", "dummy_tensor", "uid"}
        for name, words in {
            "global_steps": "the step is in the tag",
            "status": "that is in the tag",
            "prompts": "these are token ids",
            "responses": "there is no answer yet",
            "session_id": "no session has begun",
            "response_mask": "there is no answer yet",
            "num_sessions": "that is in the tag",
        }.items():
            assert f"{name}: {words}" in said(check_marker_fields(truth | {name}, snapshot, uid))
        assert "1 name still missing from your answer" in said(check_marker_fields(truth - {"uid"}, snapshot, uid))
        assert "is a set of names" in said(check_marker_fields("uid", snapshot, uid))
        bare = said(check_marker_fields({"raw_prompt"}, *self.marked(with_rows=False)))
        assert "raw_prompt: the markers of sync mode have tags and no field" in bare


class TestReadableUid:
    def planted(self, seed: int = 0) -> tuple[ReadableUid, TransferQueue]:
        """Submitted, answered by two rows a prompt, and finished."""
        fault, tq = readable_uid(prompts(), seed), TransferQueue()
        for uid in fault.prompts.get("uid").tolist():
            tq.kv_put(uid, "train", tag={"is_prompt": True, "status": "finished", "global_steps": 1})
            for session_id in range(2):
                tq.kv_put(f"{uid}_{session_id}_0", "train", {"responses": torch.arange(3)}, tag={"status": "success"})
        return fault, tq

    @pytest.mark.parametrize("seed", range(4))
    def test_its_group_is_lost(self, seed: int) -> None:
        fault, tq = self.planted(seed)
        batch, _ = ReplayBuffer(tq).sample(1, "train", 4)
        assert len(batch) == 6
        left = set(tq.kv_list("train")["train"]) - set(batch.keys)
        assert left == {f"{fault.uid}_{session_id}_0" for session_id in range(2)}
        assert all(fault.check(said).ok is True for said in (fault.uid, f" {fault.uid} ", [fault.uid], {fault.uid}))

    def test_wrong(self) -> None:
        fault, _ = self.planted()
        healthy = next(uid for uid in fault.prompts.get("uid").tolist() if uid != fault.uid)
        assert "is what the sampler takes for the uid" in said(fault.check("mult"))
        assert "is the key of a row" in said(fault.check(f"{fault.uid}_0_0"))
        assert "is healthy: its rows are in the batch" in said(fault.check(healthy))
        assert "is healthy" in said(fault.check(healthy[:4]))
        assert "is only how it begins: write down the whole uid" in said(fault.check(fault.uid[:-1]))
        assert "one uid, a string, not None" in said(fault.check(None))
        assert "one uid, a string, not ['mult_tool_1_0_0', 'x']" in said(fault.check(["mult_tool_1_0_0", "x"]))
        assert "no prompt of this batch has the uid 'mult_tool_99'" in said(fault.check("mult_tool_99"))
        assert fault.check(...).ok is None

    def test_printing_does_not_give_it_away(self) -> None:
        fault, _ = self.planted()
        assert fault.uid not in repr(fault)
        assert fault.uid in fault.reveal()
        assert fault.uid.startswith("mult_tool_1")
