"""The change feed: a reader that applies it knows what kv_list would say, at the cost of what changed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kitlib.transfer_queue import Changes, QueueRuntimeError, QueueValueError, TransferQueue
from kitlib.transfer_queue.journal import Journal


class Reader:
    """Keeps {partition: {key: tag}} by the feed alone."""

    def __init__(self) -> None:
        self.version = 0
        self.known: dict[str, dict[str, Any]] = {}

    def apply(self, changes: Changes) -> None:
        if changes.is_complete:
            self.known = {}
        for name, keys in changes.cleared.items():
            for key in keys:
                self.known.get(name, {}).pop(key, None)
        for name, tags in changes.tags.items():
            self.known.setdefault(name, {}).update(tags)
        self.version = changes.version


def ordered(listing: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    """With the order of the keys, without partitions that are empty."""
    return {name: list(keys.items()) for name, keys in listing.items() if keys}


KEYS, PARTITIONS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3), st.sampled_from("pq")
ACTIONS = st.lists(st.tuples(st.sampled_from(["put", "put", "clear", "look"]), PARTITIONS, KEYS), max_size=30)


@settings(max_examples=200, deadline=None)
@given(actions=ACTIONS, capacity=st.sampled_from([4, 20_000]))
def test_a_reader_of_the_feed_knows_what_kv_list_says(actions: list[Any], capacity: int) -> None:
    tq, reader = TransferQueue(), Reader()
    tq._journal = Journal(capacity)
    for number, (verb, partition, keys) in enumerate(actions):
        if verb == "put":
            with contextlib.suppress(QueueValueError):  # a key twice: stored, then refused
                tq.kv_batch_put(keys, partition, tags=[{"t": number}] * len(keys))
        elif verb == "clear":
            tq.kv_clear(keys, partition)
        else:
            reader.apply(tq.changes(reader.version))
            assert ordered(reader.known) == ordered(tq.kv_list())


def test_only_what_changed_is_told_and_fields_count_as_a_change() -> None:
    tq = TransferQueue()
    tq.kv_batch_put(["a", "b", "c"], "p", tags=[{"t": 1}] * 3)
    tq.kv_put("z", "q", tag={})
    since = tq.version
    tq.kv_put("b", "p", {"x": torch.ones(1)})
    tq.kv_clear(["c"], "p")
    changes = tq.changes(since)
    assert (changes.is_complete, changes.tags, changes.cleared) == (False, {"p": {"b": {"t": 1}}}, {"p": {"c"}})
    assert changes.num_keys == 2
    assert tq.changes(since, "q").num_keys == 0
    assert tq.changes(changes.version).num_keys == 0


def test_tags_in_the_feed_are_copies() -> None:
    tq = TransferQueue()
    tq.kv_put("a", "p", tag={"t": [1]})
    tq.changes(0).tags["p"]["a"]["t"].append(2)
    assert tq.kv_list("p")["p"]["a"] == {"t": [1]}


def test_a_handle_that_is_changed_later_does_not_change_the_journal() -> None:
    tq = TransferQueue()
    since = tq.version
    handle = tq.kv_batch_put(["a", "b"], "p", tags=[{}, {}])
    handle.keys.append("ghost")
    assert list(tq.changes(since).tags["p"]) == ["a", "b"]


def test_who_stayed_away_too_long_starts_over() -> None:
    tq = TransferQueue()
    tq._journal = Journal(capacity=3)
    tq.kv_batch_put(["a", "b"], "p", tags=[{}, {}])
    since = tq.version
    tq.kv_batch_put(["c", "d"], "p", tags=[{}, {}])
    assert not tq.changes(tq.version).is_complete
    changes = tq.changes(since)
    assert changes.is_complete
    assert list(changes.tags["p"]) == ["a", "b", "c", "d"]
    assert tq.changes(tq.version + 1).is_complete  # a version of some other queue


def test_after_a_load_everything_is_new_and_after_a_close_nothing_is_told(tmp_path: Path) -> None:
    tq = TransferQueue()
    tq.kv_put("a", "p", tag={})
    tq.save_checkpoint(tmp_path)
    tq.kv_put("b", "p", tag={})
    since = tq.version
    tq.load_checkpoint(tmp_path)
    changes = tq.changes(since)
    assert (changes.is_complete, list(changes.tags["p"])) == (True, ["a"])
    tq.close()
    with pytest.raises(QueueRuntimeError, match="closed"):
        tq.changes(0)
