"""Samplers: which of the ready rows a get_meta hands out. Pure functions of rows; the client (client.py) marks and
waits.

TransferQueue 0.1.11: sampler/. The original reasons with global indexes: GRPOGroupNSampler there takes n consecutive
indexes for a group, and mixes two prompts as soon as index 0 is missing or indexes are used again. Here a group is a
uid.

A sampler of one's own is three lines:

    class Newest(Sampler):
        def sample(self, ready, batch_size, **config):
            return ready[-batch_size:]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from kitlib.keys import is_trajectory_key, uid_of
from kitlib.transfer_queue.errors import QueueValueError

AUTO_PREFIX = "row"  # keys of rows that were put without keys: row0, row1, ..., never used twice


class Row(NamedTuple):
    """A row that is ready for a task: all requested fields are there, and the task has not consumed it."""

    key: str
    tag: dict[str, Any]


class Sampler(ABC):
    """Base class. A subclass defines `sample`; `consumes` False hands rows out again and again."""

    consumes = True

    @abstractmethod
    def sample(self, ready: Sequence[Row], batch_size: int, **config: Any) -> Sequence[Row]:
        """The rows to hand out, in order; an empty result means "not enough yet". ready: in the order of their first
        put.
        """

    def plan(self, ready: Sequence[Row], batch_size: int, **config: Any) -> dict[Any, Sequence[Row]]:
        """{dp_rank: rows}: what every rank gets that this call decides for; by default the calling one."""
        return {config.get("dp_rank"): self.sample(ready, batch_size, **config)}


class SequentialSampler(Sampler):
    """The first batch_size rows in the order of their first put."""

    def sample(self, ready: Sequence[Row], batch_size: int, **config: Any) -> Sequence[Row]:
        return ready[:batch_size] if len(ready) >= batch_size else []


class RankAwareSampler(SequentialSampler):
    """Sequential, for several ranks: calls with the same dp_rank and batch_index get the same rows, others get others.

    sampling_config: dp_rank, batch_index. The client keeps what it handed out, so the ranks need not come at the same
    time.
    """

    def sample(self, ready: Sequence[Row], batch_size: int, **config: Any) -> Sequence[Row]:
        for name in ("dp_rank", "batch_index"):
            if not isinstance(config.get(name), int) or config[name] < 0:
                raise QueueValueError(
                    f"RankAwareSampler needs sampling_config[{name!r}] >= 0, got {config.get(name)!r}"
                )
        return super().sample(ready, batch_size)


class GRPOGroupNSampler(Sampler):
    """Whole groups only: n_samples_per_prompt rows of one uid, groups in the order of their first row.

    batch_size counts rows and is a multiple of n_samples_per_prompt. Rows that were put without keys are grouped by n
    in the order of the put.
    """

    def __init__(self, n_samples_per_prompt: int = 1) -> None:
        if n_samples_per_prompt < 1:
            raise QueueValueError(f"n_samples_per_prompt must be positive, not {n_samples_per_prompt}")
        self.n_samples_per_prompt = n_samples_per_prompt

    def sample(self, ready: Sequence[Row], batch_size: int, **config: Any) -> Sequence[Row]:
        return [row for group in self.groups(ready, batch_size) for row in group]

    def groups(self, ready: Sequence[Row], batch_size: int) -> list[list[Row]]:
        """The complete groups of a batch; none if there are not enough."""
        size = self.n_samples_per_prompt
        if batch_size % size:
            raise QueueValueError(f"batch_size {batch_size} is no multiple of n_samples_per_prompt {size}")
        groups: dict[str, list[Row]] = {}
        for row in ready:
            groups.setdefault(self._group_of(row.key), []).append(row)
        complete = [rows[:size] for rows in groups.values() if len(rows) >= size]
        return complete[: batch_size // size] if len(complete) * size >= batch_size else []

    def _group_of(self, key: str) -> str:
        number = key.removeprefix(AUTO_PREFIX)
        if not is_trajectory_key(key) and number.isdecimal():
            return f"{AUTO_PREFIX}{int(number) // self.n_samples_per_prompt}"
        return uid_of(key)


class SeqlenBalancedSampler(GRPOGroupNSampler):
    """Whole groups, dealt out to dp_size ranks so that each gets as many groups and about as many tokens.

    batch_size is that of one rank. Reads the tag `length_tag` of every row (default `seq_len`). Longest group first,
    each to the rank with the fewest tokens that still has room.
    """

    def __init__(self, n_samples_per_prompt: int = 1, dp_size: int = 1, length_tag: str = "seq_len") -> None:
        super().__init__(n_samples_per_prompt)
        if dp_size < 1:
            raise QueueValueError(f"dp_size must be positive, not {dp_size}")
        self.dp_size = dp_size
        self.length_tag = length_tag

    def plan(self, ready: Sequence[Row], batch_size: int, **config: Any) -> dict[Any, Sequence[Row]]:
        groups = self.groups(ready, batch_size * self.dp_size)
        room = batch_size // self.n_samples_per_prompt
        shares: list[list[Row]] = [[] for _ in range(self.dp_size)]
        tokens = [0] * self.dp_size
        for group in sorted(groups, key=self._num_tokens, reverse=True):
            open_ranks = [rank for rank in range(self.dp_size) if len(shares[rank]) < room * self.n_samples_per_prompt]
            rank = min(open_ranks, key=tokens.__getitem__)
            shares[rank] += group
            tokens[rank] += self._num_tokens(group)
        return dict(enumerate(shares))

    def _num_tokens(self, group: Sequence[Row]) -> int:
        for row in group:
            if self.length_tag not in row.tag:
                raise QueueValueError(f"SeqlenBalancedSampler: row {row.key!r} has no tag {self.length_tag!r}")
        return sum(row.tag[self.length_tag] for row in group)
