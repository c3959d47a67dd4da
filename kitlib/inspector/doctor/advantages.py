"""Advantages against rewards (reads values): what GRPO makes of a group, and whether it stands on the right rows.

verl 0.9.1: trainer/ppo/core_algos.py, compute_grpo_outcome_advantage, and trainer/ppo/v1/utils.py, which takes the last
output of each session and spreads its value. Other estimators are not computed again here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kitlib.inspector.doctor.finding import Finding, few
from kitlib.inspector.doctor.scene import Row, grouped, keys_of, sessions_of
from kitlib.inspector.doctor.situation import Situation
from kitlib.inspector.doctor.values import is_array

EPSILON = 1e-6  # verl's epsilon in (reward - mean) / (std + epsilon)


def group_advantages(rewards: Sequence[float], normalise: bool = True) -> list[float]:
    """What GRPO makes of the rewards of one group, one number a session. verl: compute_grpo_outcome_advantage."""
    if len(rewards) == 1:
        return list(rewards)
    spread = float(np.std(rewards, ddof=1)) + EPSILON if normalise else 1.0
    return [(reward - float(np.mean(rewards))) / spread for reward in rewards]


def mispaired_advantages(s: Situation) -> Iterator[Finding]:
    """mispaired_advantages (reads rm_scores, response_mask, advantages): the right numbers on the wrong rows."""
    if s.choices.estimator != "grpo" or s.choices["algorithm.use_kl_in_reward"] or s.batch is None:
        return
    rows = s.readable_rows
    found = {key: _scalar(value) for key, value in s.read("advantages", rows).items()}
    stored = {key: value for key, value in found.items() if value is not None}
    expected = _expected_advantages(s, rows)
    masks = s.read("response_mask", rows)
    known = [row for row in rows if row.key in stored and row.key in expected and np.any(masks.get(row.key, 0))]
    wrong = [row for row in known if not np.isclose(stored[row.key], expected[row.key], atol=2e-3)]
    have, want = (sorted(table[row.key] for row in wrong) for table in (stored, expected))
    if not wrong or not np.allclose(have, want, atol=2e-3):
        return
    first = wrong[0]
    yield Finding(
        "mispaired_advantages",
        "error",
        f"The advantages of {few(keys_of(wrong))} are those of other rows: {first.key} has {stored[first.key]:.3g}, "
        f"and its rewards make {expected[first.key]:.3g}. They were put back in another order than they were read.",
        "Put advantages with the keys of the very batch they were computed for, and compute them again.",
        s.partition_id,
        keys_of(wrong),
        ("advantages",),
        {
            "rows": len(wrong),
            "of": len(known),
            "advantage": round(stored[first.key], 4),
            "expected": round(expected[first.key], 4),
        },
        view="group_board",
    )


def _expected_advantages(s: Situation, rows: Sequence[Row]) -> dict[str, float]:
    """{key: what GRPO gives the row}: the scalar of its session's last output."""
    scores = s.read("rm_scores", rows)
    normalise = bool(s.choices["algorithm.norm_adv_by_std_in_grpo"])
    out: dict[str, float] = {}
    for members in grouped(rows).values():
        sessions = list(sessions_of(members).values())
        if any(not is_array(scores.get(outputs[-1].key)) for outputs in sessions):
            continue
        rewards = [float(np.sum(scores[outputs[-1].key])) for outputs in sessions]
        if not np.isfinite(rewards).all():
            continue
        made = group_advantages(rewards, normalise)
        for outputs, advantage in zip(sessions, made, strict=True):
            out |= dict.fromkeys(keys_of(outputs), advantage)
    return out


def _scalar(value: Any) -> float | None:
    """The advantage of a row: its first value that is not 0 (masked tokens have 0)."""
    if not is_array(value) or not np.size(value):
        return None
    found = value[value != 0]
    return float(found[0]) if found.size else 0.0
