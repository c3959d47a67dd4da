"""Groups as GRPO sees them: rows of one uid, one reward a session, mean and std over the sessions.

verl 0.9.1: trainer/ppo/core_algos.py, compute_grpo_outcome_advantage (sum of the token rewards of a row; torch.std,
which divides by n - 1; a group of one row keeps mean 0 and std 1, so its advantage is the raw reward) and
trainer/ppo/v1/utils.py (of the outputs of a session only the one with the highest index counts). Padding rows form no
group.

A reward is `rm_scores` summed over the response, an advantage is the value at the first token that the model wrote.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from kitlib.inspector.selection import Selection
from kitlib.keys import TrajectoryKey, is_trajectory_key, uid_of

EPSILON = 1e-6  # verl's epsilon in (reward - mean) / (std + epsilon)


@dataclass(frozen=True)
class Session:
    """One sample of the prompt. `key` is the row that counts (highest index); None: not known, or not there yet."""

    session_id: int
    key: str
    num_outputs: int
    reward: float | None
    advantage: float | None
    length: int | None  # response tokens, tools' included


@dataclass(frozen=True)
class Group:
    """All sessions of one uid. `status` is the marker's, None when the marker is gone (the group was sampled)."""

    uid: str
    status: str | None
    sessions: tuple[Session, ...]
    is_padding: bool = False
    submitted_at: int | None = None  # trainer step

    @property
    def num_rows(self) -> int:
        return sum(session.num_outputs for session in self.sessions)

    @cached_property
    def rewards(self) -> list[float]:
        return [session.reward for session in self.sessions if session.reward is not None]

    @property
    def unscored(self) -> list[str]:
        return [session.key for session in self.sessions if session.reward is None]

    @cached_property
    def mean(self) -> float:
        return _sum(self.rewards) / len(self.rewards) if self.rewards else math.nan

    def std(self, ddof: int = 1) -> float:
        """Standard deviation over sessions: ddof=1 as torch.std and GRPO, ddof=0 as numpy."""
        if len(self.rewards) <= ddof:
            return math.nan
        gaps = [reward - self.mean for reward in self.rewards]
        return math.sqrt(_sum([gap * gap for gap in gaps]) / (len(gaps) - ddof))

    @property
    def is_flat(self) -> bool:
        """True if every session earned the same: all advantages are zero."""
        return len(self.rewards) > 1 and min(self.rewards) == max(self.rewards)

    @property
    def is_nan(self) -> bool:
        """True if one session earned NaN: mean, std and every advantage of the group are NaN."""
        return math.isnan(sum(self.rewards))

    @property
    def teaches(self) -> bool:
        """True if at least one session gets an advantage that is neither zero nor NaN."""
        return not (self.is_padding or self.is_flat or self.is_nan) and any(self.expected_advantages())

    def expected_advantages(self, normalise: bool = True) -> list[float]:
        """What GRPO makes of these rewards, one number a session."""
        if len(self.rewards) == 1:
            return list(self.rewards)
        scale = self.std() + EPSILON if normalise else 1.0
        return [(reward - self.mean) / scale for reward in self.rewards]

    def missing_sessions(self, n: int | None) -> list[int]:
        """Session numbers below n that have no row."""
        there = {session.session_id for session in self.sessions}
        return [s for s in range(n or 0) if s not in there]


def _sum(values: list[float]) -> float:
    """Exact to the last digit, so that the mean of equal rewards is that reward; NaN and infinity as in `sum`."""
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def groups_of(selection: Selection, columns: Mapping[str, Mapping[str, torch.Tensor]]) -> list[Group]:
    """Every uid of the selection in the order of the queue, padding last; uids that only have a marker are groups
    without rows."""
    markers = zip(selection.keys(selection.markers), selection.tags(selection.markers), strict=True)
    marker = {uid_of(key): tag for key, tag in markers}
    outputs: dict[str, dict[int, list[tuple[int, int]]]] = {uid: {} for uid in marker}  # session -> (index, position)
    for i in selection.rows:
        if is_trajectory_key(key := selection.partition.keys[i]):
            parsed = TrajectoryKey.parse(key)
            outputs.setdefault(parsed.uid, {}).setdefault(parsed.session_id, []).append((parsed.index, i))
    groups = [_group(uid, marker.get(uid), sessions, selection, columns) for uid, sessions in outputs.items()]
    return sorted(groups, key=lambda group: group.is_padding)


def _group(
    uid: str,
    marker: Mapping[str, Any] | None,
    sessions: dict[int, list[tuple[int, int]]],
    selection: Selection,
    columns: Mapping[str, Mapping[str, Any]],
) -> Group:
    made = tuple(_session(s, positions, selection, columns) for s, positions in sorted(sessions.items()))
    padding = any(selection.is_padding(i) for positions in sessions.values() for _, i in positions)
    tag = marker or {}
    return Group(uid, tag.get("status"), made, padding, tag.get("global_steps"))


def _session(
    session_id: int,
    positions: list[tuple[int, int]],
    selection: Selection,
    columns: Mapping[str, Mapping[str, Any]],
) -> Session:
    _, last = max(positions)
    key = selection.partition.keys[last]
    scores, mask = columns.get("rm_scores", {}).get(key), columns.get("response_mask", {}).get(key)
    length = len(mask) if mask is not None else selection.partition.tags[last].get("response_len")
    reward = float(scores.sum()) if scores is not None else None
    return Session(
        session_id, key, len(positions), reward, _advantage(columns.get("advantages", {}).get(key), mask), length
    )


def _advantage(advantages: torch.Tensor | None, mask: torch.Tensor | None) -> float | None:
    """The value at the first trained token; 0.0 where the mask is empty; None without the field."""
    if advantages is None or mask is None or len(advantages) != len(mask):
        return None
    first = int(mask.argmax()) if len(mask) else 0
    return float(advantages[first]) if len(mask) and mask[first] else 0.0
