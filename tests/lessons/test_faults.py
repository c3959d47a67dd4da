"""A planted fault is really there, its check takes the right finding only, and mending leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kitlib.lessons import Fault, lose_field, misplace_row
from kitlib.transfer_queue import KVBatchMeta, TransferQueue, explain_get


def words(fault: Fault, *answer: Any, **named: Any) -> str:
    checked = fault.check(*answer, **named)
    assert checked.ok is False
    return "\n".join(checked.says)


class TestLoseField:
    def test_the_column_is_gone_for_all_rows(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        fault = lose_field(tq, batch)
        assert explain_get(tq, batch).missing_cells == [(fault.key, fault.lost)]
        assert fault.lost not in tq.kv_batch_get(batch.keys, "train").keys()
        assert tq.kv_list("train")["train"][fault.key]["status"] == "success"

    def test_right(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        fault = lose_field(tq, batch)
        assert fault.check(fault.key, fault.lost).ok is True

    def test_open(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        fault = lose_field(tq, batch)
        assert fault.check(..., ...).ok is None
        assert fault.check(fault.key, ...).ok is None

    def test_wrong(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        fault = lose_field(tq, batch)
        healthy = next(key for key in batch.keys if key != fault.key)
        assert "is a healthy row" in words(fault, healthy, fault.lost)
        assert "is a prompt marker" in words(fault, "u2", fault.lost)
        assert "no partition has a key 'u7_0_0'" in words(fault, "u7_0_0", fault.lost)
        assert "uid is on the row, too" in words(fault, fault.key, "uid")
        assert "no row has 'rm_score'" in words(fault, fault.key, "rm_score")
        assert "half of the answer: pass field" in words(fault, fault.key)

    def test_the_fault_hits_whatever_seed(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        found = set()
        for seed in range(12):
            fault = lose_field(tq, batch, seed)
            found.add((fault.key, fault.lost))
            fault.mend()
        assert len({key for key, _ in found}) > 1
        assert len({field for _, field in found}) > 1

    def test_a_short_key_is_enough(self, tq: TransferQueue) -> None:
        uids = ["aaaa1111-2222-3333", "bbbb1111-2222-3333"]
        keys = [f"{uid}_0_0" for uid in uids]
        for key in keys:
            tq.kv_put(key, "train", fields={"rm_scores": torch.zeros(2), "responses": torch.arange(2)})
        fault = lose_field(tq, KVBatchMeta(keys, [{}, {}], "train"), fields=("rm_scores",))
        assert fault.check(f"{fault.key[:4]}_0_0", "rm_scores").ok is True
        assert fault.check("aaaa_0_0" if fault.key != keys[0] else "bbbb_0_0", "rm_scores").ok is False


class TestMisplaceRow:
    def test_the_row_is_elsewhere(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        fault = misplace_row(tq, batch)
        assert explain_get(tq, batch).missing_keys == [fault.key]
        assert list(tq.kv_list("val")["val"]) == [fault.key]
        assert len(tq.kv_batch_get(batch.keys, "train")) == 3

    def test_right_and_wrong(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        fault = misplace_row(tq, batch)
        assert fault.check(fault.key, partition_id="val").ok is True
        assert fault.check(fault.key, partition_id=...).ok is None
        assert "train is where the row belongs" in words(fault, fault.key, partition_id="train")
        assert "there is no partition 'test'" in words(fault, fault.key, partition_id="test")
        healthy = next(key for key in batch.keys if key != fault.key)
        assert "is a healthy row" in words(fault, healthy, partition_id="val")
        assert "half of the answer: pass partition_id" in words(fault, fault.key)


@pytest.mark.parametrize("plant", [lose_field, misplace_row])
def test_mending_leaves_no_trace(
    tq: TransferQueue, batch: KVBatchMeta, plant: Callable[[TransferQueue, KVBatchMeta], Fault]
) -> None:
    before, tags = tq.kv_batch_get(batch.keys, "train"), tq.kv_list("train")["train"]
    fault = plant(tq, batch)
    fault.mend()
    after = tq.kv_batch_get(batch.keys, "train")
    assert explain_get(tq, batch).ok
    assert tq.kv_list("train")["train"] == tags
    assert set(after.keys()) == set(before.keys())
    for name in ("responses", "rollout_log_probs", "rm_scores"):
        assert all(torch.equal(a, b) for a, b in zip(after[name].unbind(), before[name].unbind(), strict=True))
    assert after.get("uid").tolist() == before.get("uid").tolist()
    assert not tq.kv_list("val").get("val")


def test_printing_does_not_give_it_away(tq: TransferQueue, batch: KVBatchMeta) -> None:
    fault = lose_field(tq, batch)
    assert fault.key not in repr(fault)
    assert str(fault.lost) not in repr(fault)
    assert fault.key in fault.reveal()
    assert str(fault.lost) in fault.reveal()
