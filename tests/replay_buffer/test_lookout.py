"""Looks that cost what changed: the same view as a full listing, at a fraction of the keys."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitlib.replay_buffer import PartitionView, ReplayBuffer, UnknownStatusError
from kitlib.replay_buffer.lookout import Lookout, fresh_view
from kitlib.transfer_queue import Changes, TransferQueue


class CountingQueue(TransferQueue):
    """Adds up the keys that its readers are told about."""

    num_told = 0

    def changes(self, *args: Any, **kwargs: Any) -> Changes:
        told = super().changes(*args, **kwargs)
        self.num_told += told.num_keys
        return told

    def kv_list(self, *args: Any, **kwargs: Any) -> Any:
        listing = super().kv_list(*args, **kwargs)
        self.num_told += sum(map(len, listing.values()))
        return listing


def prompt(tq: TransferQueue, uid: str, status: str, step: int = 1) -> None:
    tq.kv_put(uid, "train", tag={"is_prompt": True, "status": status, "global_steps": step})


def rows(tq: TransferQueue, uids: list[str], num_sessions: int) -> None:
    keys = [f"{uid}_{session}_0" for uid in uids for session in range(num_sessions)]
    tq.kv_batch_put(keys, "train", tags=[{"status": "success"}] * len(keys))


def test_one_more_finished_prompt_among_10000_rows_costs_a_look_at_one_key() -> None:
    tq = CountingQueue()
    uids = [f"u{number}" for number in range(1250)]
    rows(tq, uids, num_sessions=8)
    for uid in uids:
        prompt(tq, uid, "running")
    buffer = ReplayBuffer(tq)
    assert len(buffer.view("train").rows) == 10_000
    tq.num_told = 0
    prompt(tq, "u7", "finished")
    batch, _ = buffer.sample(1, "train", batch_size=1)
    assert tq.num_told == 1
    assert batch.keys == [f"u7_{session}_0" for session in range(8)]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["pending", "running", "finished", "failure", "rows", "clear", "look"]),
        st.sampled_from(["u1", "u2", "u3"]),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_what_is_kept_between_looks_is_what_a_full_listing_shows(actions: list[tuple[str, str]]) -> None:
    tq = TransferQueue()
    lookout = Lookout(tq)
    for step, (what, uid) in enumerate([*actions, ("look", "")]):
        if what == "rows":
            rows(tq, [uid], num_sessions=2)
        elif what == "clear":
            tq.kv_clear([uid, f"{uid}_1_0"], "train")
        elif what == "look":
            kept, listed = lookout.look("train"), fresh_view(tq, "train")
            assert kept.prompts == listed.prompts
            assert list(kept.rows.items()) == list(listed.rows.items())
            assert kept.keys_of(["u3", "u1", "u2"]) == listed.keys_of(["u1", "u2", "u3"])
            assert kept.oldest(9) == listed.oldest(9)
        else:
            prompt(tq, uid, what, step // 4)


def test_prompts_of_one_step_are_taken_in_the_order_of_first_write_whenever_they_finish() -> None:
    view = PartitionView("train")
    marker = {"is_prompt": True, "global_steps": 1}
    view.update({"a": {**marker, "status": "running"}, "b": {**marker, "status": "finished"}})
    view.update({"a": {**marker, "status": "failure"}})
    assert view.oldest(1) == ["a"]


def test_a_view_that_could_not_be_made_is_not_kept() -> None:
    tq = TransferQueue()
    lookout = Lookout(tq)
    prompt(tq, "a", "running")
    lookout.look("train")
    prompt(tq, "a", "done")
    prompt(tq, "b", "running")
    for _ in range(2):
        with pytest.raises(UnknownStatusError, match="'done'"):
            lookout.look("train")
    prompt(tq, "a", "finished")
    view = lookout.look("train")
    assert (list(view.prompts["finished"]), list(view.prompts["running"])) == (["a"], ["b"])


def test_what_is_evicted_leaves_the_view_and_may_come_back() -> None:
    tq = TransferQueue()
    buffer = ReplayBuffer(tq)
    rows(tq, ["a", "b"], num_sessions=1)
    prompt(tq, "a", "finished")
    view = buffer.view("train")
    buffer._clear(view, {"a"})
    assert (view.terminal, list(view.rows)) == ({}, ["b_0_0"])
    rows(tq, ["a"], num_sessions=1)
    assert list(buffer.view("train").rows) == ["b_0_0", "a_0_0"]
