"""Rollout correction: when the policy that sampled is not quite the policy that is trained.

verl 0.9.1: trainer/ppo/rollout_corr_helper.py, compute_rollout_correction_and_rejection_mask,
compute_rollout_correction_weights, compute_rollout_rejection_mask. Left out: batch normalisation over ranks.

Samplers run in another precision, with other kernels, or a few updates behind. With d = log pi_train - log pi_rollout
of a token:

    importance weights   (rollout_is)   multiply the loss of a token by exp(d), truncated
    rejection            (rollout_rs)   take tokens or rows out of response_mask whose d is too large

    d  ->  weight  ->  truncate (a number) or drop (a pair)  ->  normalise to mean 1, if asked for
    d  ->  k1, k2 or k3 of a token  ->  as it is, or summed, averaged, maximum over the row  ->  within the threshold?

All tensors [num_rows, j1]. Differs: rows without an unmasked token (padding rows) are kept out of every metric; in
verl they count in the means over rows, so that one row with a difference of 1.0 beside three padding rows reads 0.25.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kitlib.algos.errors import AlgoError
from kitlib.algos.masked import EMPTY, masked_mean, masked_sum
from kitlib.algos.policy_loss import section_value
from kitlib.algos.rollout_correction_metrics import (
    SAFETY_BOUND,
    off_policy_metrics,
    rejection_metrics,
    rejection_totals,
    weight_metrics,
)

ROLLOUT_RS = (
    *("token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
    *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"),
)
"""Rejection rules: how far (k), over what (a token; sum, mean or maximum over a row)."""


class RolloutCorrection(NamedTuple):
    """What a correction changes, and its numbers."""

    weights: Tensor | None
    """rollout_is_weights, 0 on masked tokens; None if rollout_is is null."""
    response_mask: Tensor
    """The mask without rejected tokens; same dtype as before."""
    metrics: dict[str, float]
    """rollout_corr/*."""


def correct_rollout(
    old_log_prob: Tensor, rollout_log_prob: Tensor, response_mask: Tensor, settings: Any
) -> RolloutCorrection:
    """The correction that a config section (algorithm.rollout_correction) asks for; see the function below."""
    return compute_rollout_correction_and_rejection_mask(
        old_log_prob,
        rollout_log_prob,
        response_mask,
        rollout_is=section_value(settings, "rollout_is", None),
        rollout_is_threshold=section_value(settings, "rollout_is_threshold", 2.0),
        rollout_is_batch_normalize=section_value(settings, "rollout_is_batch_normalize", False),
        rollout_rs=section_value(settings, "rollout_rs", None),
        rollout_rs_threshold=section_value(settings, "rollout_rs_threshold", None),
    )


@torch.no_grad()
def compute_rollout_correction_and_rejection_mask(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: str | float = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: str | float | None = None,
) -> RolloutCorrection:
    """Weights, mask and metrics; with everything null the metrics alone.

    Args:
        old_log_prob, rollout_log_prob: of the sampled tokens, under the trainer and under the sampler. rollout_is:
        "token" or "sequence" weights. rollout_is_threshold: 2.0 truncates weights above it; "0.5_2.0" drops weights
        outside of it. rollout_is_batch_normalize: divide the weights by their mean. rollout_rs: names from
        ROLLOUT_RS, comma separated: all must accept a token. rollout_rs_threshold: one threshold for all of them or
        one each, comma separated. For k1 a pair of ratios "0.8_1.25" (or u,
            for "1/u_u"), else an upper bound.
    """
    if not response_mask.any():
        raise AlgoError(
            "rollout correction of a batch whose response_mask is zero everywhere: no token is left to train on"
        )
    log_ratio = old_log_prob - rollout_log_prob
    metrics: dict[str, float] = {}
    weights, mask = None, response_mask.clone()
    if rollout_is is not None:
        weights, some = importance_weights(
            log_ratio, response_mask, rollout_is, rollout_is_threshold, rollout_is_batch_normalize
        )
        metrics |= some
    if rollout_rs is not None:
        mask, some = rejection_mask(log_ratio, response_mask, rollout_rs, rollout_rs_threshold)
        metrics |= some
    metrics |= off_policy_metrics(old_log_prob, rollout_log_prob, response_mask)
    return RolloutCorrection(weights, mask, {f"rollout_corr/{name}": value for name, value in metrics.items()})


def importance_weights(
    log_ratio: Tensor, response_mask: Tensor, level: str, threshold: str | float, batch_normalize: bool
) -> tuple[Tensor, dict[str, float]]:
    """w = exp(d) of a token, or exp(sum d) of a row on all its tokens; then truncated.

    A number u gives min(w, u) (truncated importance sampling); a pair "l_u" gives w where l <= w <= u, else 0
    (IcePop, "Every Step Evolves", arXiv:2510.18855). d is clamped to +-20 before exp.
    """
    if level == "token":
        raw = torch.exp(log_ratio.clamp(-SAFETY_BOUND, SAFETY_BOUND)) * response_mask
    elif level == "sequence":
        row = masked_sum(log_ratio, response_mask, dim=-1).clamp(-SAFETY_BOUND, SAFETY_BOUND)
        raw = torch.exp(row).unsqueeze(-1) * response_mask
    else:
        raise AlgoError(f"algorithm.rollout_correction.rollout_is={level!r} is neither 'token' nor 'sequence'")
    lower, upper = _pair("rollout_is_threshold", threshold)
    weights = raw.clamp(max=upper) if lower is None else torch.where((raw >= lower) & (raw <= upper), raw, 0.0)
    metrics = weight_metrics(weights, raw, log_ratio, response_mask, level, lower, upper)
    if batch_normalize:
        rows = response_mask.any(dim=-1)
        mean = masked_mean(weights, response_mask)
        if level == "sequence":  # every row counts once, however long
            mean = masked_mean(weights, response_mask, dim=-1)[rows].mean()
        if mean > EMPTY:
            weights = weights / mean
        metrics["rollout_is_batch_norm_factor"] = mean.item() if mean > EMPTY else 1.0
    return weights, metrics


def rejection_mask(
    log_ratio: Tensor, response_mask: Tensor, rules: str, thresholds: str | float | None
) -> tuple[Tensor, dict[str, float]]:
    """The mask of the tokens that all rules accept.

    k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d (J. Schulman, "Approximating KL divergence", 2020). A rule on rows
    accepts or rejects a row as a whole.
    """
    names = list(dict.fromkeys(name.strip() for name in rules.split(",") if name.strip()))
    unknown = [name for name in names if name not in ROLLOUT_RS]
    if unknown or not names:
        raise AlgoError(
            f"algorithm.rollout_correction.rollout_rs={rules!r}: {', '.join(unknown) or 'nothing'} is not among "
            f"{', '.join(ROLLOUT_RS)}"
        )
    kept = torch.ones_like(response_mask, dtype=torch.bool)
    metrics: dict[str, float] = {}
    for name, (lower, upper) in zip(names, _rejection_bounds(names, thresholds), strict=True):
        statistic = _statistic(name, log_ratio, response_mask)
        accepted = (statistic <= upper) & (statistic >= lower)
        kept &= accepted
        is_k1 = name.endswith("k1")
        metrics |= rejection_metrics(name, statistic, accepted, response_mask, lower if is_k1 else None, upper)
    metrics |= rejection_totals(kept, response_mask)
    return (response_mask * kept).to(response_mask.dtype), metrics


def _statistic(name: str, log_ratio: Tensor, response_mask: Tensor) -> Tensor:
    """The value of a rule at every token; a rule on rows has the value of the row everywhere."""
    d = log_ratio.clamp(-SAFETY_BOUND, SAFETY_BOUND)
    over, _, k = name.rpartition("_")
    per_token = {"k1": -d, "k2": 0.5 * d**2, "k3": torch.exp(d) - 1.0 - d}[k]
    if over == "token":
        return per_token
    reduce: dict[str, Callable[[], Tensor]] = {
        "seq_sum": lambda: masked_sum(per_token, response_mask, dim=-1),
        "seq_mean": lambda: masked_mean(per_token, response_mask, dim=-1),
        # k2 and k3 are never negative, so that a masked 0 is never the maximum of a row that has a token.
        "seq_max": lambda: (per_token * response_mask).max(dim=-1).values,
    }
    return reduce[over]().unsqueeze(-1).expand_as(per_token)


def _rejection_bounds(names: list[str], thresholds: str | float | None) -> list[tuple[float, float]]:
    """(lower, upper) for the statistic of each rule; for k1 the logs of the ratios."""
    key = "rollout_rs_threshold"
    specs = [spec.strip() for spec in str(thresholds if thresholds is not None else "").split(",") if spec.strip()]
    if len(specs) not in (1, len(names)):
        raise AlgoError(
            f"algorithm.rollout_correction.{key}={thresholds!r} has {len(specs)} threshold(s) for {len(names)} rule(s) "
            f"({', '.join(names)}): give one for all or one each, comma separated"
        )
    bounds = []
    for name, spec in zip(names, specs * (len(names) if len(specs) == 1 else 1), strict=True):
        lower, upper = _pair(key, spec)
        if name.endswith("k1"):
            bounds.append((math.log(1.0 / upper if lower is None else lower), math.log(upper)))
        elif lower is not None:
            raise AlgoError(f"algorithm.rollout_correction.{key}: {name} takes one upper bound, not the pair {spec!r}")
        else:
            bounds.append((-math.inf, upper))
    return bounds


def _pair(key: str, spec: str | float) -> tuple[float | None, float]:
    """(lower or None, upper) of "u" or "l_u", both above zero."""
    try:
        numbers = [float(part) for part in str(spec).split("_")]
    except ValueError:
        numbers = []
    if isinstance(spec, bool) or len(numbers) not in (1, 2) or min(numbers) <= 0 or numbers[0] > numbers[-1]:
        raise AlgoError(
            f"algorithm.rollout_correction.{key}={spec!r}: expected a number above zero, or two as 'lower_upper'"
        )
    return (numbers[0] if len(numbers) == 2 else None), numbers[-1]
