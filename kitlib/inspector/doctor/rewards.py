"""Rewards and masks (these rules read values): what the advantage will be made of.

verl 0.9.1: trainer/ppo/core_algos.py. One NaN makes its whole group NaN; a reward on a token whose mask is 0 still
moves its siblings; a group whose rewards are all equal teaches nothing; DAPO's filter looks at one metric alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kitlib.inspector.doctor.advantages import group_advantages
from kitlib.inspector.doctor.choices import LAST_OUTPUT_ESTIMATORS, WHITENING_ESTIMATORS
from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.scene import Row, grouped, keys_of, last_outputs
from kitlib.inspector.doctor.situation import Situation
from kitlib.inspector.doctor.values import is_array

JUDGING = ("compute_advantage", "update_critic", "update_actor")


def nan_rewards(s: Situation) -> Iterator[Finding]:
    """nan_reward (reads rm_scores, advantages): NaN or an infinity."""
    rows = s.readable_rows
    for field in ("rm_scores", "advantages"):
        read = s.read(field, rows)
        bad = [row for row in rows if not _finite(read.get(row.key))]
        if not bad:
            continue
        spoilt, reach = _spoilt(s, bad)
        yield Finding(
            "nan_reward",
            "error",
            f"{field} of {few(keys_of(bad))} {verb(len(bad), 'holds', 'hold')} NaN or an infinity; the advantages of "
            f"{reach} become NaN. Stop before the actor update.",
            "Guard the reward function against NaN and infinities, and take "
            f"{few(sorted({row.uid for row in bad}))} out of this batch.",
            s.partition_id,
            keys_of(bad),
            (field,),
            {"rows_spoilt": spoilt, "rows": len(bad)},
            view="group_board",
        )
        return


def _spoilt(s: Situation, bad: list[Row]) -> tuple[int, str]:
    """How many rows get no number for an advantage, and which: by what the estimator compares a reward with."""
    rows, uids = s.readable_rows, {row.uid for row in bad}
    if s.choices.estimator in WHITENING_ESTIMATORS:
        return len(rows), f"all {some(len(rows), 'row')} ({s.choices.estimator} scales over the whole batch)"
    spoilt = [row for row in rows if row.uid in uids] if s.choices.compares_groups else bad
    return len(spoilt), f"{some(len(spoilt), 'row')} of {few(sorted(uids))}, and of no other group,"


def reward_on_masked_token(s: Situation) -> Iterator[Finding]:
    """reward_on_masked_token (reads rm_scores, response_mask): the reward sits where nothing is trained."""
    if s.is_past("compute_advantage"):  # rejection sampling clears masks there, and is meant to
        return
    rows = s.readable_rows
    scores, masks = s.read("rm_scores", rows), s.read("response_mask", rows)
    bad = [row for row in rows if _on_masked(scores.get(row.key), masks.get(row.key))]
    if not bad:
        return
    first = bad[0]
    reward, valid = float(np.sum(scores[first.key])), int(np.sum(masks[first.key]))
    sibling = _sibling(s, first, scores)
    moved = f" It moves the advantage of {sibling[0]} to {sibling[1]:g}." if sibling else ""
    yield Finding(
        "reward_on_masked_token",
        "warning",
        f"The reward {reward:g} of {first.key} sits on a token whose mask is 0 ({some(valid, 'trainable token')} in "
        f"the row); group statistics still use it.{moved}"
        + (f" The same goes for {few(keys_of(bad[1:]))}." if bad[1:] else ""),
        "Put the reward on the last token with mask 1, or leave rows without a trainable token out of the group.",
        s.partition_id,
        keys_of(bad),
        ("rm_scores", "response_mask"),
        {
            "reward": round(reward, 4),
            "valid_tokens": valid,
            "rows": len(bad),
            **({"advantage_of_sibling": sibling[1]} if sibling else {}),
        },
        view="tokens",
    )


def no_valid_token(s: Situation) -> Iterator[Finding]:
    """no_valid_token (reads response_mask): rows, or a whole batch, without a single trainable token."""
    rows = s.readable_rows
    masks = s.read("response_mask", rows)
    empty = [row for row in rows if row.key in masks and np.size(masks[row.key]) and not np.any(masks[row.key])]
    if not empty:
        return
    everything = len(empty) == len(rows) and not s.is_before_sampling
    rejected = everything and any(np.any(mask) for mask in s.read("loss_mask", empty).values())
    yield Finding(
        "no_valid_token",
        "error" if everything else "info",
        (
            "No row of the batch has a token with mask 1: the update has nothing to learn from."
            + (
                " loss_mask still has some, so the rejection of the rollout correction cleared them."
                if rejected
                else ""
            )
        )
        if everything
        else f"{few(keys_of(empty))} {verb(len(empty), 'has', 'have')} no token with mask 1 and "
        f"{verb(len(empty), 'gives', 'give')} no gradient.",
        "Loosen algorithm.rollout_correction.rollout_rs_threshold, and look at why rollout and actor log-probs differ."
        if rejected
        else "Look at how the agent loop sets response_mask for these rows.",
        s.partition_id,
        keys_of(empty),
        ("response_mask",),
        {"valid_tokens": 0, "rows": len(empty), "of": len(rows)},
        view="tokens",
    )


def zero_std_groups(s: Situation) -> Iterator[Finding]:
    """zero_std_groups (reads rm_scores or the filter's metric): no group has any spread."""
    metric = s.choices.filter_metric
    sampling = s.stage == "sample" and metric is not None and s.partition_id != "val"
    if not sampling and not (s.is_at(*JUDGING) and s.choices.compares_groups):
        return
    rewards = _metric_of_groups(s, str(metric)) if sampling else _rewards_of_groups(s)
    judged = {uid: values for uid, values in rewards.items() if len(values) > 1 and np.all(np.isfinite(values))}
    flat = [uid for uid, values in judged.items() if float(np.std(values)) == 0.0]
    if not flat or len(flat) < len(rewards):
        return
    field = "rm_scores" if not sampling or metric == "reward" else "extra_fields"
    levels = few([f"{value:g}" for value in sorted({judged[uid][0] for uid in flat})])
    refill = _refill(s, len(flat)) if sampling else None
    numbers = {"groups": len(rewards), "groups_without_spread": len(flat)} | ({"refill": refill} if sampling else {})
    what = "reward" if field == "rm_scores" else str(metric)
    effect = (
        f"the filter evicts them and asks for {some(refill or 0, 'fresh prompt')}; if the data stays this easy or "
        "hard, sampling never ends."
        if sampling
        else "every advantage is 0, and the step learns nothing but its KL or entropy terms."
    )
    yield Finding(
        "zero_std_groups",
        "warning" if sampling or len(rewards) > 1 else "info",
        f"In {len(flat)} of {some(len(rewards), 'group')} all rows have equal {what} ({levels}), so {effect}",
        "Change the difficulty of the data, or turn algorithm.filter_groups off."
        if sampling
        else "Change the difficulty of the data, or filter such groups while sampling (algorithm.filter_groups).",
        s.partition_id,
        tuple(flat) if sampling else keys_of(row for row in s.readable_rows if row.uid in set(flat)),
        (field,),
        numbers,
        view="group_board",
    )


def shaped_reward_filter(s: Situation) -> Iterator[Finding]:
    """shaped_reward_filter (reads rm_scores, extra_fields): a group passes by the shaped part of the reward alone."""
    if s.stage != "sample" or s.choices.filter_metric != "reward" or s.partition_id == "val":
        return
    rewards, accuracy = _metric_of_groups(s, "reward"), _metric_of_groups(s, "acc")
    passing = [
        uid
        for uid, values in rewards.items()
        if len(values) > 1 and float(np.std(values)) > 0
        if len(accuracy.get(uid, [])) == len(values) and float(np.std(accuracy[uid])) == 0
    ]
    if passing:
        first = passing[0]
        yield Finding(
            "shaped_reward_filter",
            "warning",
            f"{few(passing)} {verb(len(passing), 'passes', 'pass')} the group filter only through the shaped part of "
            f"the reward ({few([f'{value:g}' for value in rewards[first]])}); acc is {accuracy[first][0]:g} in all "
            f"rows of {first}.",
            "Set algorithm.filter_groups.metric to acc.",
            s.partition_id,
            tuple(passing),
            ("rm_scores", "extra_fields"),
            {
                "std_of_reward": round(float(np.std(rewards[first])), 4),
                "std_of_acc": round(float(np.std(accuracy[first])), 4),
                "groups": len(passing),
            },
            view="group_board",
        )


def _refill(s: Situation, num_flat: int) -> int:
    """Prompts that are fetched for evicted groups: one each, in sync mode two each as far as the bound allows."""
    if s.choices.is_async:
        return num_flat
    bound = int(s.choices["algorithm.filter_groups.max_inflight_gen_batches"]) * int(s.choices["data.train_batch_size"])
    return max(0, min(2 * num_flat, bound - len(s.scene.in_flight)))


def _rewards_of_groups(s: Situation) -> dict[str, list[float]]:
    """{uid: rewards}: of the rows that the estimator compares."""
    groups = grouped(s.readable_rows)
    scores = s.read("rm_scores", s.readable_rows)
    out = {}
    for uid, rows in groups.items():
        counted = last_outputs(rows) if s.choices.estimator in LAST_OUTPUT_ESTIMATORS else rows
        out[uid] = [float(np.sum(scores[row.key])) for row in counted if is_array(scores.get(row.key))]
    return out


def _metric_of_groups(s: Situation, metric: str) -> dict[str, list[float]]:
    """{uid: metric of every row} of the finished groups, as the filter reads it."""
    finished = set(s.scene.with_status(["finished"]))
    rows = [row for row in s.readable_rows if row.uid in finished]
    field = "rm_scores" if metric == "reward" else "extra_fields"
    read = s.read(field, rows)
    out: dict[str, list[float]] = {}
    for row in rows:
        value = _metric(read.get(row.key), metric)
        out.setdefault(row.uid, []).extend([] if value is None else [value])
    return out


def _metric(value: Any, metric: str) -> float | None:
    if metric == "reward":
        return float(np.sum(value)) if is_array(value) else None
    info = value.get("reward_extra_info") if isinstance(value, dict) else None
    number = info.get(metric) if isinstance(info, dict) else None
    return float(number) if isinstance(number, int | float) else None


def _sibling(s: Situation, row: Row, scores: dict[str, Any]) -> tuple[str, float] | None:
    """(key, advantage) of the first other session of the group, under GRPO."""
    if s.choices.estimator != "grpo":
        return None
    rows = last_outputs([other for other in s.readable_rows if other.uid == row.uid])
    if len(rows) < 2 or any(not is_array(scores.get(other.key)) for other in rows):
        return None
    rewards = [float(np.sum(scores[other.key])) for other in rows]
    made = group_advantages(rewards, bool(s.choices["algorithm.norm_adv_by_std_in_grpo"]))
    others = [(o.key, round(a, 4)) for o, a in zip(rows, made, strict=True) if o.session != row.session]
    return others[0] if others else None


def _finite(value: Any) -> bool:
    return not is_array(value) or bool(np.all(np.isfinite(value)))


def _on_masked(scores: Any, mask: Any) -> bool:
    if not is_array(scores) or not is_array(mask) or np.shape(scores) != np.shape(mask):
        return False
    with np.errstate(invalid="ignore"):
        return bool(np.any((scores != 0) & np.isfinite(scores) & (mask == 0)))
