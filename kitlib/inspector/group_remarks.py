"""What is odd about a group: the remark column of the group board.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py decides about old groups (max_off_policy_threshold) and constant ones
(algorithm.filter_groups, dynamic sampling of DAPO, arXiv:2503.14476); trainer/ppo/core_algos.py makes nothing of equal
rewards and NaN of one NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from kitlib.inspector.groups import Group
from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Span, cell
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.settings import setting
from kitlib.inspector.staleness_view import Policy, versions_spanned

FILTER, METRIC = "algorithm.filter_groups.enable", "algorithm.filter_groups.metric"


@dataclass(frozen=True)
class Rules:
    """What a config makes of groups. n: sessions a prompt should have. now: the trainer's step, None if not known."""

    n: int | None
    policy: Policy
    filters_constant: bool
    now: int | None

    @classmethod
    def of(cls, config: Any, n: int | None, now: int | None) -> Rules:
        n = n if n is not None else setting(config, "actor_rollout_ref.rollout.n")
        by_reward = bool(setting(config, FILTER, False)) and setting(config, METRIC, "reward") == "reward"
        return cls(n, Policy(config), by_reward, now)

    def fate_by_age(self, group: Group) -> str:
        """What the sampler does to a prompt of this age, "" for nothing. A sampled group is past that."""
        if self.now is None or group.status is None or group.submitted_at is None:
            return ""
        return self.policy.verdict(group.status, versions_spanned(self.now, group.submitted_at))

    def is_filtered(self, group: Group) -> bool:
        """True if the sampler will evict the finished group because all its rewards are equal."""
        return self.filters_constant and group.status == "finished" and group.is_flat


def remarks(group: Group, rules: Rules, names: ShortNames) -> Cell:
    """Sentences about one group, the worst first."""
    if group.is_padding:
        return cell("padding: in no group", State.DIM)
    age = _age_remarks(group, rules)
    if not group.sessions:
        return Cell((Span("no row yet", State.DIM), *age))
    parts = _reward_remarks(group, names)
    if len(group.sessions) == 1:
        parts.append(Span("single row: advantage is the raw reward", State.WARN))
    if group.is_flat:
        filtered = " (filtered by DAPO at the next sample)" if rules.is_filtered(group) else ""
        parts.append(Span(f"no signal: all equal{filtered}", State.WARN))
    return Cell(tuple(_apart([*parts, *age, *_size_remarks(group, rules.n)])))


def _apart(parts: list[Span]) -> list[Span]:
    """Remarks that stand beside each other end in a semicolon, all but the last."""
    return [replace(span, text=f"{span.text};") for span in parts[:-1]] + parts[-1:]


def _reward_remarks(group: Group, names: ShortNames) -> list[Span]:
    parts = []
    broken = [one.key for one in group.sessions if one.reward is not None and math.isnan(one.reward)]
    if broken:
        named = listed([names.key(key) for key in broken], 2)
        parts.append(Span(f"NaN reward on {named}: the whole group becomes NaN", State.BAD))
    if group.rewards and group.unscored:
        parts.append(Span(f"no rm_scores on {listed([names.key(key) for key in group.unscored], 2)}", State.BAD))
    return parts


def _age_remarks(group: Group, rules: Rules) -> list[Span]:
    fate = rules.fate_by_age(group)
    if not fate or rules.now is None or group.submitted_at is None:
        return []
    spans = count(versions_spanned(rules.now, group.submitted_at), "weight version")
    return [Span(f"stale: spans {spans}, {fate}", State.WARN)]


def _size_remarks(group: Group, n: int | None) -> list[Span]:
    parts = []
    missing = group.missing_sessions(n)
    if missing and len(group.sessions) > 1:
        named = listed([str(session) for session in missing], 8)
        parts.append(Span(f"{count(len(missing), 'session')} missing ({named})", State.WARN))
    if n and (beyond := [one.session_id for one in group.sessions if one.session_id >= n]):
        parts.append(Span(f"session {listed([str(session) for session in beyond])} is beyond n", State.WARN))
    if any(session.num_outputs > 1 for session in group.sessions):
        parts.append(Span("of several outputs the last counts", State.DIM))
    return parts
