"""Staleness and versions: which weights wrote a row, and what is done about the difference.

verl 0.9.1: agent_loop_tq.py copies min_global_steps and max_global_steps of the server's answer into the tag;
compute_metrics casts both to int after the optimizer step has been made. The trainer at step t holds weights t - 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.scene import Row, keys_of, whole
from kitlib.inspector.doctor.situation import Situation

WORTH_SAYING = 0.1  # nats a token between rollout and actor log-probs


def version_tags_missing(s: Situation) -> Iterator[Finding]:
    """version_tags_missing: rows without a weight version, which stops the metrics of the step."""
    rows = _tagged(s)
    bare = [row for row in rows if _span(row) is None]
    if bare:
        yield Finding(
            "version_tags_missing",
            "error",
            f"min_global_steps and max_global_steps are missing or None on {len(bare)} of {some(len(rows), 'row')} "
            f"({few(keys_of(bare))}); the metrics stage stops with a TypeError after the optimizer step has been made.",
            "Let the agent loop copy min_global_steps and max_global_steps of the server's answer into extra_fields of "
            "its output.",
            s.partition_id,
            keys_of(bare),
            numbers={"rows": len(bare), "of": len(rows)},
            view="staleness",
        )


def version_tags_constant(s: Situation) -> Iterator[Finding]:
    """version_tags_constant: rows that claim weights which do not exist yet."""
    if s.global_steps is None:
        return
    newest = s.global_steps - 1
    ahead = [row for row in _tagged(s) if (span := _span(row)) is not None and span[1] > newest]
    if not ahead:
        return
    low, high = _span(ahead[0]) or (0, 0)
    yield Finding(
        "version_tags_constant",
        "warning",
        f"{few(keys_of(ahead))} {verb(len(ahead), 'says', 'say')} weights {high} while the trainer at step "
        f"{s.global_steps} has weights {newest}: a lag of {newest - high} cannot be. The agent loop wrote the step of "
        "the prompt instead of the server's weight version.",
        "Let the agent loop copy min_global_steps and max_global_steps of the server's answer into extra_fields of its "
        "output.",
        s.partition_id,
        keys_of(ahead),
        numbers={
            "min_global_steps": low,
            "max_global_steps": high,
            "global_steps": s.global_steps,
            "lag": newest - high,
            "rows": len(ahead),
        },
        view="staleness",
    )


def version_span(s: Situation) -> Iterator[Finding]:
    """version_span: rows that several weight versions wrote together (partial rollout)."""
    spans = {row.key: span for row in _tagged(s) if (span := _span(row)) is not None and span[1] > span[0]}
    if not spans:
        return
    widest = max(high - low for low, high in spans.values())
    low, high = next(pair for pair in spans.values() if pair[1] - pair[0] == widest)
    wide = {key: pair for key, pair in spans.items() if pair[1] - pair[0] > 1} or spans
    yield Finding(
        "version_span",
        "warning" if _is_wide(s, widest) and not s.choices.has_correction else "info",
        f"{few(list(wide))} {verb(len(wide), 'was', 'were')} written by up to {widest + 1} weight versions ({low} to "
        f"{high}): the generation was interrupted by weight updates and went on.",
        "Nothing to do within trainer.v1.sampler.max_off_policy_threshold; else set "
        "algorithm.rollout_correction.rollout_is, or finish prompts before the weights change.",
        s.partition_id,
        tuple(wide),
        numbers={
            "min_global_steps": low,
            "max_global_steps": high,
            "span": widest,
            "versions": widest + 1,
            "rows": len(wide),
        },
        view="staleness",
    )


def off_policy_uncorrected(s: Situation) -> Iterator[Finding]:
    """off_policy_uncorrected (reads both log-probs): rows of older weights, and nothing corrects for them."""
    if s.stage != "update_actor" or s.choices.has_correction or s.global_steps is None:
        return
    trainer = s.global_steps - 1
    late = [row for row in s.readable_rows if (span := _span(row)) is not None and span[1] < trainer]
    gap = _mean_gap(s, late)
    if gap is None or gap < WORTH_SAYING:
        return
    oldest = min(span[0] for row in late if (span := _span(row)) is not None)
    yield Finding(
        "off_policy_uncorrected",
        "warning",
        f"{some(len(late), 'row')} come from weights {oldest} and the trainer is at {trainer}, a lag of "
        f"{trainer - oldest}. old_log_probs were computed again with the current weights, so the ratio starts at 1 and "
        f"clipping does nothing about the gap of {gap:.2g} to rollout_log_probs; no rollout correction is set.",
        "Set algorithm.rollout_correction.rollout_is, or use rollout_log_probs as the old ones "
        "(algorithm.rollout_correction.bypass_mode).",
        s.partition_id,
        keys_of(late),
        ("old_log_probs", "rollout_log_probs"),
        {
            "weights_of_rows": oldest,
            "weights_of_trainer": trainer,
            "lag": trainer - oldest,
            "mean_log_prob_gap": round(gap, 4),
            "rows": len(late),
        },
    )


def _is_wide(s: Situation, span: int) -> bool:
    """True for a row as old at its begin as no prompt may be; in sync mode no weights change while a row is made."""
    return span > 1 if not s.choices.is_async else s.choices.threshold is not None and span >= s.choices.threshold


def _tagged(s: Situation) -> list[Row]:
    """Rows of training whose tags the metrics stage reads."""
    if s.partition_id == "val" or s.stage in ("submit_batch_to_rollout", "generate_sequences"):
        return []
    return [row for row in s.settled_rows if row.tag]


def _span(row: Row) -> tuple[int, int] | None:
    low, high = whole(row.tag.get("min_global_steps")), whole(row.tag.get("max_global_steps"))
    return None if low is None or high is None else (low, high)


def _mean_gap(s: Situation, rows: list[Row]) -> float | None:
    """Mean |old_log_probs - rollout_log_probs| over the trainable tokens of these rows."""
    old, rollout, masks = (s.read(field, rows) for field in ("old_log_probs", "rollout_log_probs", "response_mask"))
    gaps = []
    for row in rows:
        values = [column.get(row.key) for column in (old, rollout, masks)]
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if len(arrays) == 3 and len({array.shape for array in arrays}) == 1:
            gaps.append(np.abs(arrays[0] - arrays[1])[arrays[2] > 0])
    tokens = np.concatenate(gaps) if gaps else np.zeros(0)
    return float(tokens.mean()) if tokens.size else None
