"""Several outputs a session: an agent loop may return a list, and each output is a row.

verl 0.9.1: the last output (highest index) of a session counts in validation and in GRPO's statistics; its value is
spread over the other outputs. Every other estimator sees each row, and so do mini-batches and the loss.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kitlib.inspector.doctor.choices import LAST_OUTPUT_ESTIMATORS
from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.scene import Row, grouped, keys_of, sessions_of
from kitlib.inspector.doctor.situation import Situation


def multi_output_sessions(s: Situation) -> Iterator[Finding]:
    """multi_output_session: sessions with more than one row."""
    several = _several(s)
    if not several:
        return
    rows = [row for outputs in several.values() for row in outputs]
    uids = {row.uid for row in rows}
    members = [row for row in s.readable_rows if row.uid in uids]
    means = _means(s, members)
    means_text = f" Their mean reward is {means[1]:g} over sessions and {means[0]:g} over all rows." if means else ""
    yield Finding(
        "multi_output_session",
        "info",
        f"{some(len(several), 'session')} of {few(sorted(uids))} {verb(len(several), 'has', 'have')} several outputs; "
        f"scores must come from the last one of each session alone.{means_text}",
        "Take the highest index of each session, as verl 0.9.1 does.",
        s.partition_id,
        keys_of(rows),
        numbers={
            "sessions": len(sessions_of(members)),
            "rows": len(members),
            **({"mean_over_rows": means[0], "mean_over_sessions": means[1]} if means else {}),
        },
        view="group_board",
    )


def extra_optimizer_steps(s: Situation) -> Iterator[Finding]:
    """extra_optimizer_steps: more rows than prompts x n, so that an update takes more steps than the config says."""
    dp_size, n = s.fact("dp_size"), s.n()
    if s.stage != "balance_batch" or not dp_size or not n or not s.choices.is_known:
        return
    several, num_groups = _several(s), len(grouped(s.real_rows))
    a_step = s.choices.rows_a_mini_batch()
    expected = num_groups * n
    padding = -len(s.rows) % s.choices.row_multiple(int(dp_size))
    steps, steps_expected = (len(s.rows) + padding) // a_step, max(1, expected // a_step)
    if steps <= steps_expected or not several:
        return
    yield Finding(
        "extra_optimizer_steps",
        "warning",
        f"{some(num_groups, 'prompt')} with n={n} should give {expected} rows and "
        f"{some(steps_expected, 'optimizer step')}; {some(len(several), 'session')} wrote several outputs, so there "
        f"are {len(s.rows)} rows, {padding} padding rows will be added, and the update takes {steps} "
        f"steps of {a_step}.",
        "Scale actor_rollout_ref.actor.ppo_mini_batch_size with the rows per session, or accept the extra steps "
        "knowingly.",
        s.partition_id,
        keys_of(row for outputs in several.values() for row in outputs),
        numbers={
            "rows_expected": expected,
            "rows": len(s.rows),
            "padding": padding,
            "optimizer_steps_expected": steps_expected,
            "optimizer_steps": steps,
            "sessions_with_several_outputs": len(several),
        },
    )


def turn_bias(s: Situation) -> Iterator[Finding]:
    """turn_bias (reads rm_scores): outputs counted as samples of their own in the baseline of a group."""
    estimator = s.choices.estimator
    if s.stage != "compute_advantage" or not s.choices.compares_groups or estimator in LAST_OUTPUT_ESTIMATORS:
        return
    heavy: list[Row] = []
    first = ""
    for uid, rows in grouped(s.readable_rows).items():
        sessions = sessions_of(rows)
        means = _means(s, rows)
        if len({len(outputs) for outputs in sessions.values()}) > 1 and means and abs(means[0] - means[1]) > 1e-9:
            first = first or uid
            heavy += [row for outputs in sessions.values() if len(outputs) > 1 for row in outputs]
    if not heavy:
        return
    members = [row for row in s.readable_rows if row.uid == first]
    mean_rows, mean_sessions = _means(s, members) or (0.0, 0.0)
    yield Finding(
        "turn_bias",
        "warning",
        f"With {estimator} every row counts in the baseline: the mean of {first} is {mean_rows:g} over its "
        f"{some(len(members), 'row')} and {mean_sessions:g} over its {some(len(sessions_of(members)), 'session')}. "
        "Only grpo takes the last output of a session alone.",
        "Use algorithm.adv_estimator=grpo for several outputs a session, or return one output a session.",
        s.partition_id,
        keys_of(heavy),
        ("rm_scores",),
        {
            "mean_over_rows": mean_rows,
            "mean_over_sessions": mean_sessions,
            "rows": len(members),
            "sessions": len(sessions_of(members)),
        },
        view="group_board",
    )


def session_weight(s: Situation) -> Iterator[Finding]:
    """session_weight: sessions with more outputs than others weigh more in the loss."""
    if s.partition_id == "val" or s.is_before_sampling:
        return
    several = _several(s)
    if not several:
        return
    counts = {name: len(outputs) for name, outputs in sessions_of(s.real_rows).items()}
    fewest = min(counts.values())
    heavy = [rows for rows in several.values() if len(rows) > fewest]
    if not heavy:
        return
    most = max(len(rows) for rows in heavy)
    yield Finding(
        "session_weight",
        "warning" if s.is_at("update_actor", "update_critic") else "info",
        f"{some(len(heavy), 'session')} {verb(len(heavy), 'has', 'have')} up to {most} rows and others "
        f"{fewest}: with the same advantage on each, {verb(len(heavy), 'it weighs', 'they weigh')} that "
        "much more in the loss.",
        "Accept it knowingly, return one output a session, or divide the advantage by the outputs of the session.",
        s.partition_id,
        keys_of(row for rows in heavy for row in rows),
        numbers={
            "sessions": len(counts),
            "rows": len(s.real_rows),
            "sessions_with_several_outputs": len(heavy),
            "largest": most,
            "smallest": fewest,
        },
        view="group_board",
    )


def last_output_masked(s: Situation) -> Iterator[Finding]:
    """last_output_masked (reads response_mask): the output whose value the session gets has no trainable token."""
    if s.partition_id == "val" or s.choices.estimator not in LAST_OUTPUT_ESTIMATORS or s.is_past("compute_advantage"):
        return
    several = _several(s)
    masks = s.read("response_mask", [row for outputs in several.values() for row in outputs])
    bad = {
        name: outputs
        for name, outputs in several.items()
        if outputs[-1].key in masks and not np.any(masks[outputs[-1].key])
        if any(np.any(masks.get(row.key, 0)) for row in outputs[:-1])
    }
    if bad:
        last = [outputs[-1].key for outputs in bad.values()]
        rows = [row for outputs in bad.values() for row in outputs]
        yield Finding(
            "last_output_masked",
            "warning",
            f"The last output of {few(list(bad))} ({few(last)}) has no trainable token. The advantage of a session is "
            "read at the first trainable token of its last output, so all its outputs get 0, whatever it earned.",
            "Let the last output have a trainable token, or take the value from another output.",
            s.partition_id,
            keys_of(rows),
            ("response_mask",),
            {"advantage": 0.0, "sessions": len(bad)},
            view="tokens",
        )


def _several(s: Situation) -> dict[str, list[Row]]:
    """Sessions with more than one row."""
    if not any(row.index for row in s.real_rows):  # most runs: one output a session, its index is 0
        return {}
    rows = [row for row in s.real_rows if row.is_readable]
    return {name: outputs for name, outputs in sessions_of(rows).items() if len(outputs) > 1}


def _means(s: Situation, rows: list[Row]) -> tuple[float, float] | None:
    """Mean reward over all rows, and over the last output of each session; None where a reward cannot be read."""
    scores = s.read("rm_scores", rows)
    if len(scores) < len(rows) or not rows or any(not isinstance(v, np.ndarray) for v in scores.values()):
        return None
    last = [outputs[-1] for outputs in sessions_of(rows).values()]
    over_rows, over_sessions = (float(np.mean([np.sum(scores[r.key]) for r in few_])) for few_ in (rows, last))
    return round(over_rows, 4), round(over_sessions, 4)
