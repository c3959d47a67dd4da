"""What a stage changed, read from two snapshots."""

from __future__ import annotations

import torch

from kitlib.inspector import View, diff
from kitlib.transfer_queue import TransferQueue, take_snapshot
from tests.inspector.queues import board_queue, marker, put_row
from tests.inspector.reading import assert_same_facts


def lines(view: View, table: int = 0) -> list[list[str]]:
    return [[str(one) for one in row] for row in view.model.tables[table].rows]


def queue() -> TransferQueue:
    tq = board_queue({"f3a1": [1, 0]})
    tq.kv_put("f3a1", "train", None, marker("running"))
    return tq


def test_nothing_changed() -> None:
    tq = queue()
    view = diff(take_snapshot(tq), take_snapshot(tq), title="sleep")
    assert view.text().startswith("sleep  train: nothing changed") and not view.model.tables


def test_put_rewrite_and_loss_of_fields() -> None:
    tq = queue()
    before = take_snapshot(tq)
    tq.kv_put("f3a1_0_0", "train", {"old_log_probs": torch.zeros(4), "rm_scores": torch.zeros(2)}, None)
    view = diff(before, take_snapshot(tq))
    assert lines(view) == [
        ["~ rewritten", "rm_scores", "1", "float32 J[4]", "float32 J[2]", "f3a1_0_0"],
        ["+ put", "old_log_probs", "1", "", "float32 J[4]", "f3a1_0_0"],
    ]
    assert "train: put 1 field on 1 row (16 bytes); rewrote 1 field on 1 row (8 bytes)" in view.text(200)
    assert_same_facts(view)


def test_rows_come_and_go() -> None:
    tq = queue()
    before = take_snapshot(tq)
    tq.kv_clear(["f3a1_1_0"], "train")
    put_row(tq, "9c02_0_0", 1.0)
    tq.kv_put("9c02", "train", None, marker("pending"))
    view = diff(before, take_snapshot(tq))
    assert [line[:3] for line in lines(view)] == [
        ["+ added", "prompt markers", "1"],
        ["+ added", "rows", "1"],
        ["- cleared", "rows", "1"],
    ]
    assert "added 1 prompt marker; added 1 row; cleared 1 row" in view.text(200)


def test_same_row_cleared_and_put_again_has_lost_fields() -> None:
    tq = queue()
    before = take_snapshot(tq)
    tq.kv_clear(["f3a1_1_0"], "train")
    tq.kv_put("f3a1_1_0", "train", {"responses": torch.arange(4)}, {"status": "success"})
    gone = [line[1] for line in lines(diff(before, take_snapshot(tq))) if line[0] == "- gone"]
    assert gone == ["response_mask", "rm_scores"]


def test_tags_are_counted_by_value() -> None:
    tq = queue()
    before = take_snapshot(tq)
    tq.kv_put("f3a1", "train", None, {"status": "finished"})
    tq.kv_batch_put(["f3a1_0_0", "f3a1_1_0"], "train", tags=[{"mine": 1}, {"mine": 2}])
    assert lines(diff(before, take_snapshot(tq))) == [
        ["~ tag", "mine", "2", "-", "1 x1, 2 x1", "f3a1_0_0 f3a1_1_0"],
        ["~ tag", "status", "1", "running", "finished", "f3a1"],
    ]


def test_partitions_each_have_their_own_table() -> None:
    tq = queue()
    before = take_snapshot(tq)
    tq.kv_put("v_0_0", "val", {"responses": torch.arange(4)}, {})
    put_row(tq, "f3a1_2_0", 1.0)
    after = take_snapshot(tq)
    assert [str(table.caption) for table in diff(before, after).model.tables] == ["train", "val"]
    assert [str(table.caption) for table in diff(before, after, partition_id="val").model.tables] == ["val"]


def test_snapshots_of_two_queues_compare_by_look_not_by_number() -> None:
    """The tables of cell descriptions are numbered per queue; equal looks must still count as equal."""
    first, second = TransferQueue(), TransferQueue()
    second.kv_put("other_0_0", "val", {"x": torch.zeros(9, dtype=torch.int16)}, {})
    for tq in (first, second):
        tq.kv_put("a_0_0", "train", {"responses": torch.arange(4)}, {"status": "success"})
    assert "nothing changed" in diff(take_snapshot(first), take_snapshot(second), partition_id="train").text()
