"""The numbers of rollout correction, under verl's names (without the prefix rollout_corr/).

verl 0.9.1: trainer/ppo/rollout_corr_helper.py, compute_is_metrics, compute_rs_metrics, compute_offpolicy_metrics.

All tensors [num_rows, j1]. Rows without an unmasked token are left out of every number (verl counts them in means
over rows).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kitlib.algos.masked import EMPTY, masked_mean, masked_sum

SAFETY_BOUND = 20.0
"""Log ratios are clamped to +- this before exp."""


def off_policy_metrics(old_log_prob: Tensor, rollout_log_prob: Tensor, response_mask: Tensor) -> dict[str, float]:
    """How far trainer and sampler are apart; d = old_log_prob - rollout_log_prob.

    kl = mean -d, k3_kl = mean (exp(d) - d - 1), chi2_token = mean exp(2 d) - 1: over tokens. *_ppl = mean over rows
    of exp(-mean over tokens of log p), *_log_ppl without exp; log_ppl_diff of a row = its training log ppl - its
    rollout log ppl; chi2_seq = mean over rows of exp(2 sum d) - 1.
    """
    rows = response_mask.any(dim=-1)
    old, rollout, mask = old_log_prob[rows], rollout_log_prob[rows], response_mask[rows]
    log_ratio = old - rollout
    training_mean, rollout_mean = masked_mean(old, mask, dim=-1), masked_mean(rollout, mask, dim=-1)  # [num_rows]
    log_ppl_diff = rollout_mean - training_mean
    squared_ratio = torch.exp(log_ratio.clamp(-SAFETY_BOUND, SAFETY_BOUND)).square()
    row_ratio = masked_sum(log_ratio, mask, dim=-1).clamp(-SAFETY_BOUND, SAFETY_BOUND)
    values = {
        "training_ppl": torch.exp(-training_mean).mean(),
        "training_log_ppl": -training_mean.mean(),
        "kl": masked_mean(-log_ratio, mask),
        "k3_kl": masked_mean(torch.exp(log_ratio) - log_ratio - 1, mask),
        "rollout_ppl": torch.exp(-rollout_mean).mean(),
        "rollout_log_ppl": -rollout_mean.mean(),
        "log_ppl_diff": log_ppl_diff.mean(),
        "log_ppl_abs_diff": log_ppl_diff.abs().mean(),
        "log_ppl_diff_max": log_ppl_diff.max(),
        "log_ppl_diff_min": log_ppl_diff.min(),
        "ppl_ratio": torch.exp(log_ppl_diff).mean(),
        "chi2_token": masked_mean(squared_ratio, mask) - 1.0,
        "chi2_seq": torch.exp(2.0 * row_ratio).mean() - 1.0,
    }
    return {name: value.item() for name, value in values.items()}


def weight_metrics(
    weights: Tensor,
    raw: Tensor,
    log_ratio: Tensor,
    response_mask: Tensor,
    level: str,
    lower: float | None,
    upper: float,
) -> dict[str, float]:
    """rollout_is_*: the distribution of importance weights. `raw` is before truncation; lower None means 1 / upper.

    ratio_fraction_high/low say how often a raw weight leaves [lower, upper]; seq_* are about the mean weight of a
    row; eff_sample_size = 1 / mean of (w / mean w)^2, 1 if all weights are equal; oob_ratio only if weights outside
    are dropped.
    """
    rows = response_mask.any(dim=-1)
    weights, raw, mask = weights[rows], raw[rows], response_mask[rows]
    low = 1.0 / upper if lower is None else lower
    bounded = weights.clamp(0.0, upper)
    normalised = bounded / (masked_mean(bounded, mask) + EMPTY)
    row_weights, raw_row_weights = masked_mean(weights, mask, dim=-1), masked_mean(raw, mask, dim=-1)
    values = {
        **(_row_ratios(masked_sum(log_ratio[rows], mask, dim=-1), low, upper) if level == "sequence" else {}),
        **(_token_ratios(weights, raw, mask, low, upper) if level == "token" else {}),
        "mean": masked_mean(weights, mask),
        "std": _std(bounded, mask),
        "eff_sample_size": 1.0 / masked_mean(normalised.square(), mask),
        "seq_mean": row_weights.mean(),
        "seq_std": _row_std(row_weights),
        "seq_max": row_weights.max(),
        "seq_min": row_weights.min(),
        "seq_max_deviation": (row_weights - 1.0).abs().max(),
        "seq_fraction_high": (raw_row_weights > upper).float().mean(),
        "seq_fraction_low": (raw_row_weights < low).float().mean(),
    }
    if lower is not None:
        values["oob_ratio"] = masked_mean(((raw < lower) | (raw > upper)).float(), mask)
    return {f"rollout_is_{name}": value.item() for name, value in values.items()}


def _row_ratios(row_log_ratio: Tensor, low: float, upper: float) -> dict[str, Tensor]:
    return {
        "max": torch.exp(row_log_ratio.max().clamp(max=SAFETY_BOUND)),
        "min": torch.exp(row_log_ratio.min()),
        "ratio_fraction_high": (row_log_ratio > math.log(upper)).float().mean(),
        "ratio_fraction_low": (row_log_ratio < math.log(low)).float().mean(),
    }


def _token_ratios(weights: Tensor, raw: Tensor, mask: Tensor, low: float, upper: float) -> dict[str, Tensor]:
    chosen = weights[mask.bool()]
    return {
        "max": chosen.max(),
        "min": chosen.min(),
        "ratio_fraction_high": masked_mean((raw > upper).float(), mask),
        "ratio_fraction_low": masked_mean((raw < low).float(), mask),
    }


def rejection_metrics(
    rule: str, statistic: Tensor, accepted: Tensor, response_mask: Tensor, lower: float | None, upper: float
) -> dict[str, float]:
    """rollout_rs_{rule}_*: the distribution of the statistic of one rule, and how much it rejects.

    `lower` None: the rule has an upper bound only. For a rule on rows mean and std count tokens, max, min and fractions
    count rows; seq_* count rows (for a rule on tokens: the mean over the row).
    """
    rows = response_mask.any(dim=-1)
    statistic, accepted, mask = statistic[rows], accepted[rows], response_mask[rows]
    on_rows = not rule.startswith("token")
    row_values = statistic[:, 0] if on_rows else masked_mean(statistic, mask, dim=-1)
    values = row_values if on_rows else statistic[mask.bool()]
    rejected = ~accepted & mask.bool()
    result = {
        "mean": masked_mean(statistic, mask),
        "max": values.max(),
        "min": values.min(),
        "fraction_high": (values > upper).float().mean(),
        "fraction_low": (values < lower).float().mean() if lower is not None else torch.tensor(0.0),
        "std": _std(statistic.clamp(0.0 if lower is None else lower, upper), mask),
        "seq_mean": row_values.mean(),
        "seq_std": _row_std(row_values),
        "seq_max": row_values.max(),
        "seq_min": row_values.min(),
        "seq_max_deviation": row_values.abs().max(),
        "seq_fraction_high": (row_values > upper).float().mean(),
        "masked_fraction": masked_mean(rejected.float(), mask),
        "seq_masked_fraction": rejected.any(dim=-1).float().mean(),
    }
    if lower is not None:
        result["seq_fraction_low"] = (row_values < lower).float().mean()
    return {f"rollout_rs_{rule}_{name}": value.item() for name, value in result.items()}


def rejection_totals(kept: Tensor, response_mask: Tensor) -> dict[str, float]:
    """Share of tokens that any rule rejects, and share of rows with such a token."""
    rows = response_mask.any(dim=-1)
    rejected = (~kept & response_mask.bool())[rows]
    return {
        "rollout_rs_masked_fraction": masked_mean(rejected.float(), response_mask[rows]).item(),
        "rollout_rs_seq_masked_fraction": rejected.any(dim=-1).float().mean().item(),
    }


def _std(values: Tensor, mask: Tensor) -> Tensor:
    """sqrt(E x^2 - (E x)^2) over unmasked tokens; 0 for a single one."""
    if mask.sum() <= 1:
        return torch.tensor(0.0)
    return (masked_mean(values.square(), mask) - masked_mean(values, mask).square()).clamp(min=0.0).sqrt()


def _row_std(row_values: Tensor) -> Tensor:
    return row_values.std() if len(row_values) > 1 else torch.tensor(0.0)
