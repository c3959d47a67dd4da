"""The event log: what it records, provenance, the file, and its cost."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from kitlib.transfer_queue import (
    Cell,
    EventLog,
    QueueFileError,
    QueueValueError,
    TransferQueue,
    acting_as,
    jagged,
    read_events,
    watch,
)


def columns(**fields: Any) -> TensorDict:
    return TensorDict(fields, batch_size=2)


def test_records_who_did_what_to_which_cells() -> None:
    tq = watch(TransferQueue())
    with acting_as(stage="rollout"), acting_as(worker="w1"):
        tq.kv_batch_put(["a", "b"], "p", columns(x=jagged([torch.arange(2), torch.arange(3)])), [{"t": 1}, {}])
    tq.kv_batch_get(["a"], "p", "x")
    tq.kv_list()
    tq.kv_clear("a", "p")
    put, get, listing, clear = tq.log.events()
    assert (put.verb, put.partition_id, put.keys, put.tags) == ("kv_batch_put", "p", ("a", "b"), ({"t": 1}, {}))
    column = put.fields["x"]
    assert column is not None
    assert [column.cell(row) for row in (0, 1)] == [Cell("int64", (2,), "row", 16), Cell("int64", (3,), "row", 24)]
    assert (put.num_bytes, put.who) == (40, {"stage": "rollout", "worker": "w1"})
    assert (get.num_bytes, list(get.fields), get.who) == (16, ["x"], {})
    assert (listing.verb, clear.keys) == ("kv_list", ("a",))
    assert put.thread == threading.current_thread().name
    assert abs(put.started_at - time.time()) < 200
    assert 0 < put.seconds < 200


def test_async_verbs_are_recorded_as_the_verb() -> None:
    tq = watch(TransferQueue())

    async def use() -> None:
        meta = await tq.async_kv_put("a", "p", {"x": torch.ones(2)}, {"t": 1})
        await tq.async_kv_batch_put(["a"], "p", tags=[{}])
        await tq.async_kv_batch_get("a", "p")
        await tq.async_kv_batch_get_by_meta(meta)
        await tq.async_kv_list()
        await tq.async_kv_clear("a", "p")

    asyncio.run(use())
    verbs = [event.verb for event in tq.log.events()]
    assert verbs == ["kv_put", "kv_batch_put", "kv_batch_get", "kv_batch_get_by_meta", "kv_list", "kv_clear"]


def test_a_call_that_fails_is_recorded_and_still_fails() -> None:
    tq = watch(TransferQueue())
    with pytest.raises(QueueValueError):
        tq.kv_batch_get("nope", "p")
    with pytest.raises(QueueValueError):
        tq.kv_put("a", "p", "no fields")  # type: ignore[arg-type]
    errors = [event.error for event in tq.log.events()]
    assert all(error is not None and error.startswith("QueueValueError: ") for error in errors)


def test_provenance_names_every_write_and_what_it_replaced() -> None:
    tq = watch(TransferQueue())
    tq.kv_put("a", "p", {"x": torch.ones(9)})
    tq.kv_clear("a", "p")
    for stage, length in (("old_log_prob", 5), ("trainer", 3)):
        with acting_as(stage=stage):
            tq.kv_batch_put(["b", "a"], "p", columns(x=torch.ones(2, length)))
    with acting_as(stage="tags"):
        tq.kv_put("a", "p", tag={"t": 1})
    first, second = tq.log.provenance("p", "a", "x")
    assert (first.event.who, first.cell.shape, first.over) == ({"stage": "old_log_prob"}, (5,), None)
    assert (second.event.who, second.cell.shape, second.over) == ({"stage": "trainer"}, (3,), first.cell)
    assert tq.log.provenance("p", "a", "y") == []
    assert tq.log.provenance("q", "a", "x") == []


def test_the_ring_is_bounded_and_numbers_go_on() -> None:
    tq = watch(TransferQueue(), EventLog(capacity=3))
    for _ in range(5):
        tq.kv_list()
    assert [event.number for event in tq.log.events()] == [2, 3, 4]
    assert [event.number for event in tq.log.events(since=4)] == [4]
    assert tq.log.num_events == 5


def test_the_file_grows_with_every_call_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tq = watch(TransferQueue(), EventLog(path=path))
    tq.kv_batch_put(
        ["a", "b"],
        "p",
        columns(x=torch.ones(2, 3), j=jagged([torch.ones(1), torch.ones(2)]), o=NonTensorStack("u", {"k": 1})),
        [{"t": (1,)}, {}],
    )
    assert len(read_events(path)) == 1
    tq.kv_clear("a", "p")
    (put, clear), (kept, _) = read_events(path), tq.log.events()
    assert (put.fields, put.keys, put.seconds) == (kept.fields, kept.keys, kept.seconds)
    assert clear.verb == "kv_clear"
    with open(path, "a") as file:
        file.write('{"number": 2, "ve')
    assert len(read_events(path)) == 2  # a line that is being written
    with open(path, "a") as file:
        file.write("\n")
    with pytest.raises(QueueFileError, match="line 3"):
        read_events(path)
    tq.log.close()


def test_what_the_queue_offers_beyond_the_verbs_passes_through() -> None:
    tq = watch(TransferQueue())
    tq.kv_put("a", "p", tag={})
    assert tq.version > 0
    assert tq.snapshot().partitions["p"].keys == ("a",)
