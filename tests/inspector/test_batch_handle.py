"""One KVBatchMeta against the queue: what is gone, elsewhere, changed, and what a get by it would bring."""

from __future__ import annotations

import pytest

from kitlib.inspector import View, batch_handle
from kitlib.transfer_queue import KVBatchMeta, TransferQueue
from tests.inspector.queues import board_queue, put_row
from tests.inspector.reading import assert_same_facts


def handle(tq: TransferQueue, partition_id: str = "train", **more: object) -> KVBatchMeta:
    listed = tq.kv_list(partition_id)[partition_id]
    return KVBatchMeta([*listed], [*listed.values()], partition_id, **more)  # type: ignore[arg-type]


def verdict(view: View) -> str:
    return view.model.headline.spans[-1].text


def whereabouts(view: View) -> list[str]:
    return [str(row[-1]) for row in view.model.tables[0].rows]


@pytest.fixture
def tq() -> TransferQueue:
    return board_queue({"f3a1": [1, 0], "9c02": [0, 1]})


def test_fresh_handle(tq: TransferQueue) -> None:
    view = batch_handle(tq, handle(tq, extra_info={"temperature": 1.0}))
    assert verdict(view) == "all keys in the queue, tags as in hand"
    assert whereabouts(view) == ["3 fields"] * 4
    assert "fields=None   extra_info={temperature: 1.0}" in view.text()
    assert "kv_batch_get_by_meta would fetch 3 fields" in view.text()
    assert_same_facts(view)


def test_cleared_row(tq: TransferQueue) -> None:
    held = handle(tq)
    tq.kv_clear(["9c02_0_0"], "train")
    view = batch_handle(tq, held)
    assert verdict(view) == "STALE: 1 of 4 keys is gone (9c02_0_0)"
    assert whereabouts(view) == ["3 fields", "3 fields", "GONE", "3 fields"]


def test_foreign_partition(tq: TransferQueue) -> None:
    held = handle(tq)
    held.partition_id = "val"
    view = batch_handle(tq, held)
    assert verdict(view).startswith("WRONG PARTITION: 4 keys not in val but in train (")
    assert whereabouts(view) == ["not here but in train"] * 4


def test_tags_that_moved_on(tq: TransferQueue) -> None:
    held = handle(tq)
    tq.kv_put("f3a1_0_0", "train", None, {"seq_len": 99})
    assert verdict(batch_handle(tq, held)) == "OLD TAGS: the queue has other tags on 1 key: seq_len"


def test_what_a_get_by_the_handle_brings_is_what_it_says(tq: TransferQueue) -> None:
    put_row(tq, "f3a1_2_0", None)
    narrowed = handle(tq, fields=["responses"])
    text = batch_handle(tq, narrowed).text(200)
    assert "would fetch 1 field; the queue has 1 more that the handle does not list: response_mask" in text
    assert set(tq.kv_batch_get_by_meta(narrowed).keys()) == {"responses"}
    held = handle(tq)
    text = batch_handle(tq, held).text(200)
    assert "would fetch 2 fields; left out because a row lacks it: rm_scores" in text
    assert set(tq.kv_batch_get_by_meta(held).keys()) == {"responses", "response_mask"}


def test_large_handle_collapses_and_puts_trouble_first() -> None:
    tq = board_queue({"f3a1": [1] * 40})
    held = handle(tq)
    tq.kv_clear(["f3a1_7_0"], "train")
    view = batch_handle(tq, held)
    assert [str(row[0]) for row in view.model.tables[0].rows] == ["1", "39"]
    assert whereabouts(view) == ["GONE", "3 fields"]


def test_empty_handle() -> None:
    assert verdict(batch_handle(TransferQueue(), KVBatchMeta(partition_id="train"))) == "empty"
