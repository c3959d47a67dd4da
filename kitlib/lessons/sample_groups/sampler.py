"""A sampler of one's own: short groups are replaced by fresh ones. And the check of a reader's version.

verl 0.9.1: the hook is trainer/ppo/v1/replay_buffer.py, ReplayBuffer._terminal_eviction_reasons.
"""

from __future__ import annotations

from typing import Any

from kitlib.keys import TrajectoryKey
from kitlib.lessons.answers import Answer, mistakes, open_answer, right
from kitlib.lessons.sample_groups.toys import ToyRefill, put_group
from kitlib.replay_buffer import PartitionView, ReplayBuffer
from kitlib.replay_buffer.evictions import Evictions
from kitlib.replay_buffer.lookout import fresh_view
from kitlib.transfer_queue import TransferQueue


class WholeGroups(ReplayBuffer):
    """Takes whole groups only: a settled group with fewer sessions than its marker promises is evicted and replaced."""

    def evictions(self, global_steps: int, view: PartitionView) -> Evictions:
        if view.partition_id == "val":
            return Evictions()
        short = {uid for uid in view.terminal if num_sessions(view, uid) < view.expected_sessions.get(uid, 0)}
        return Evictions(failed=frozenset(short))


def num_sessions(view: PartitionView, uid: str) -> int:
    """How many sessions of a prompt have left a row."""
    return len({TrajectoryKey.parse(key).session_id for key in view.keys_of([uid])})


def check_whole_groups(sampler: Any) -> Answer:
    """Does this subclass of ReplayBuffer evict just the settled short groups, and replace them?"""
    if not (isinstance(sampler, type) and issubclass(sampler, ReplayBuffer)):
        return mistakes(["hand over the class itself, a subclass of ReplayBuffer"])
    try:
        train, val = _evictions(sampler, "train"), _evictions(sampler, "val")
        if train.failed is ...:
            return open_answer()
        wrong = _wrong(train, val)
        return mistakes(wrong) if wrong else _sampled(sampler)
    except Exception as error:  # noqa: BLE001 - whatever the reader's class raises is shown, not raised
        return mistakes([f"evictions raised {type(error).__name__}: {error}"])


def _toy(partition_id: str) -> TransferQueue:
    """Whole groups of two and one; short ones (one of two, two of three, failed, without rows); two in flight."""
    tq = TransferQueue()
    put_group(tq, "whole", (1.0, 0.0), partition_id=partition_id)
    put_group(tq, "flat", (1.0, 1.0), partition_id=partition_id)
    put_group(tq, "single", (1.0,), num_sessions=1, partition_id=partition_id)
    put_group(tq, "short", (1.0,), partition_id=partition_id)
    put_group(tq, "large", (1.0, 0.0), num_sessions=3, partition_id=partition_id)
    put_group(tq, "failed", (0.0,), "failure", partition_id=partition_id)
    put_group(tq, "empty", (), "failure", partition_id=partition_id)
    put_group(tq, "running", (1.0,), "running", partition_id=partition_id)
    put_group(tq, "pending", (), "pending", partition_id=partition_id)
    return tq


def _evictions(sampler: type[ReplayBuffer], partition_id: str) -> Evictions:
    """What the class evicts from the toy."""
    tq = _toy(partition_id)
    try:
        return sampler(tq, refill_fn=lambda num_prompts: None).evictions(1, fresh_view(tq, partition_id))
    finally:
        tq.close()


def _wrong(evictions: Evictions, in_val: Evictions) -> list[str]:
    train, wrong = evictions.uids, []
    if evictions.constant or evictions.stale:
        wrong.append("it returns them under another reason: only groups that are returned as `failed` are replaced")
    if train & {"running", "pending"}:
        wrong.append("it evicts a prompt in flight, whose rows are still to come: only view.terminal has settled")
    if train & {"whole", "flat", "single"}:
        wrong.append("it evicts a whole group: a group is short if it has fewer sessions than the marker promises")
    if "short" not in train:
        wrong.append("it keeps a finished group with one row of two: finished says that all sessions have settled")
    if "short" in train and "large" not in train:
        wrong.append("it keeps a group with two rows of three: view.expected_sessions says how many a prompt has")
    if not {"failed", "empty"} <= train:
        wrong.append("it keeps a failed group that is short: view.terminal has finished and failed prompts")
    if in_val.uids:
        wrong.append('it evicts from the partition "val": a validation counts every prompt')
    return wrong


def _sampled(sampler: type[ReplayBuffer]) -> Answer:
    tq = _toy("train")
    tq.kv_clear(keys=["running", "running_0_0", "pending"], partition_id="train")
    refill = ToyRefill(tq, [(0.0, 1.0)] * 4)
    try:
        batch, _ = sampler(tq, refill_fn=refill, give_up_after=0.1).sample(1, "train", batch_size=4)
    finally:
        tq.close()
    return right(
        f"four short groups evicted, {sum(refill.calls)} submitted anew, and {len(batch)} rows in four whole groups"
    )
