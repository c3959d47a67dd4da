"""Two groups that share a uid: the `uid` column says that they are one, their keys say that they are two.

    fault = merge_groups(tq, batch)
    fault.check("1a2b", "3c4d")      the two uids, as the keys have them; the first characters are enough
    fault.mend()

The advantage stage groups rows by the column `uid`; sampler and views group them by the key. So the board shows two
healthy groups, and only their advantages are odd.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict

from kitlib.inspector.names import ShortNames
from kitlib.keys import uid_of
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, list_of_dict_to_tensordict


@dataclass
class MergedGroups:
    """The rows of `moved` carry the uid of `host` in their column; keys and everything else are as they were."""

    tq: QueueProtocol = field(repr=False)
    batch: KVBatchMeta = field(repr=False)
    host: str = field(repr=False)
    moved: str = field(repr=False)

    def reveal(self) -> str:
        """What was done, in one sentence."""
        return f"the rows of {self._short(self.moved)} have the uid of {self._short(self.host)} in their uid column"

    def mend(self) -> None:
        """Write the uid of their key back to the rows."""
        _write_uid(self.tq, self.batch, self.moved, self.moved)

    def check(self, one: Any, other: Any) -> Answer:
        """Are these the two groups, in any order? A uid may be short: its first characters."""
        if unanswered(one, other):
            return open_answer()
        uids = list(dict.fromkeys(map(uid_of, self.batch.keys)))
        said = [[uid for uid in uids if uid.startswith(str(start).removesuffix("_"))] for start in (one, other)]
        wrong = [
            f"{start!r} is the beginning of {len(found)} uids of the batch, one is expected"
            for start, found in zip((one, other), said, strict=True)
            if len(found) != 1
        ]
        if wrong:
            return mistakes(wrong)
        found = {said[0][0], said[1][0]}
        if len(found) == 1:
            return mistakes(["these are the same group twice: two groups are mixed up"])
        healthy = found - {self.host, self.moved}
        return mistakes([self._is_healthy(uid) for uid in sorted(healthy)]) if healthy else right(self.reveal())

    def _is_healthy(self, uid: str) -> str:
        return f"{self._short(uid)} is healthy: each of its advantages is (reward - mean) / std of its own line"

    def _short(self, uid: str) -> str:
        return ShortNames(self.batch.keys).uid(uid)


def merge_groups(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> MergedGroups:
    """The rows of one group get the uid of another one, whose mean reward is as far away as possible.

    Reads rm_scores; rewrites `uid` of the rows of one group. Which of the two is rewritten follows from `seed`.
    """
    assert batch.partition_id is not None, "the batch names no partition"
    scores = tq.kv_batch_get(batch.keys, batch.partition_id, ["rm_scores"])["rm_scores"].unbind()
    rewards: dict[str, list[float]] = {}
    for key, row in zip(batch.keys, scores, strict=True):
        rewards.setdefault(uid_of(key), []).append(float(row.sum()))
    means = {uid: torch.tensor(numbers).mean().item() for uid, numbers in rewards.items()}
    pair = [min(means, key=means.__getitem__), max(means, key=means.__getitem__)]
    assert pair[0] != pair[1], "all groups have the same mean: merging two of them would hardly show"
    random.Random(seed).shuffle(pair)
    fault = MergedGroups(tq, batch, host=pair[0], moved=pair[1])
    _write_uid(tq, batch, fault.moved, fault.host)
    return fault


def _write_uid(tq: QueueProtocol, batch: KVBatchMeta, group: str, uid: str) -> None:
    """Put `uid` into the uid column of the rows whose key belongs to `group`."""
    assert batch.partition_id is not None, "the batch names no partition"
    keys = [key for key in batch.keys if uid_of(key) == group]
    fields: TensorDict = list_of_dict_to_tensordict([{"uid": uid} for _ in keys])
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields)
