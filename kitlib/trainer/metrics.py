"""Numbers of a step, under the names that verl logs.

verl 0.9.1: trainer/ppo/metric_utils.py (compute_data_metrics, compute_timing_metrics, compute_throughout_metrics),
utils/debug/metrics.py (calculate_debug_metrics) and the staleness block of trainer_base.py,
PPOTrainer._compute_metrics. Pure functions of tensors and numbers: nothing here touches the queue.

Differs from verl: padding rows are dropped before, by the caller, for everything but the throughput. Left out:
gradient-variance proxies, mixture-of-experts and speculative-decoding statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def summary(name: str, values: Tensor) -> dict[str, float]:
    """{name}/mean, /max and /min; NaN where there is no value."""
    if values.numel() == 0:
        return {f"{name}/{what}": float("nan") for what in ("mean", "max", "min")}
    values = values.float()
    return {
        f"{name}/mean": values.mean().item(),
        f"{name}/max": values.max().item(),
        f"{name}/min": values.min().item(),
    }


def compute_data_metrics(
    data: Mapping[str, Tensor], max_prompt_length: int, max_response_length: int
) -> dict[str, float]:
    """Scores, rewards, advantages, returns and lengths of a batch.

    Args:
        data: token_level_scores, token_level_rewards, advantages, returns, response_mask and, with a critic, values,
        each
            [num_rows, max R] zero-padded; prompt_length and response_length [num_rows].
        max_prompt_length, max_response_length: tokens; a row that reaches them counts as clipped.

    A row without any response token is "aborted": its score does not count, its length does.
    """
    mask = data["response_mask"].bool()
    lengths = data["response_length"].float()
    kept = lengths > 0
    metrics = {
        **summary("critic/score", data["token_level_scores"].sum(-1)[kept]),
        **summary("critic/rewards", data["token_level_rewards"].sum(-1)[kept]),
        **summary("critic/advantages", data["advantages"][mask]),
        **summary("critic/returns", data["returns"][mask]),
        **_length_metrics("response_length", lengths, max_response_length),
        **_length_metrics("response_length_non_aborted", lengths[kept], max_response_length),
        **_length_metrics("prompt_length", data["prompt_length"].float(), max_prompt_length),
        "response/aborted_ratio": (~kept).float().mean().item(),
    }
    if "values" in data:
        metrics.update(_value_metrics(data["values"][mask], data["returns"][mask]))
    return metrics


def _length_metrics(name: str, lengths: Tensor, longest: int) -> dict[str, float]:
    clipped = (lengths == longest).float().mean().item()  # the mean of nothing is NaN
    return {**summary(name, lengths), f"{name}/clip_ratio": clipped}


def _value_metrics(values: Tensor, returns: Tensor) -> dict[str, float]:
    """The critic's explained variance: 1 - var(returns - values) / var(returns), over response tokens."""
    explained = 1.0 - torch.var(returns - values) / (torch.var(returns) + 1e-5)
    return {**summary("critic/values", values), "critic/vf_explained_var": explained.item()}


def turn_metrics(num_turns: Sequence[int]) -> dict[str, float]:
    """Chat turns a session, under the name of the V0 trainer and of the V1 trainer."""
    turns = torch.tensor(num_turns)
    return {**summary("num_turns", turns), **summary("training/num_turns", turns)}


def compute_timing_metrics(
    timing_raw: Mapping[str, float], num_response_tokens: int, num_tokens: int
) -> dict[str, float]:
    """timing_s/{name}, and timing_per_token_ms/{name}: `gen` per response token, the model passes per token of all."""
    metrics = {f"timing_s/{name}": seconds for name, seconds in timing_raw.items()}
    per_token = {"gen": num_response_tokens} | dict.fromkeys(
        ("ref", "values", "adv", "update_critic", "update_actor"), num_tokens
    )
    for name, count in per_token.items():
        if name in timing_raw:
            metrics[f"timing_per_token_ms/{name}"] = 1000 * timing_raw[name] / count if count else 0.0
    return metrics


def compute_throughput_metrics(timing_raw: Mapping[str, float], num_tokens: int, num_devices: int) -> dict[str, float]:
    """Tokens of the step (prompts, responses and padding), seconds, and tokens a second and device."""
    seconds = timing_raw["step"]
    return {
        "perf/total_num_tokens": num_tokens,
        "perf/time_per_step": seconds,
        "perf/throughput": num_tokens / (seconds * num_devices),
    }


def rollout_probs_diff(rollout_log_probs: Tensor, old_log_probs: Tensor, response_mask: Tensor) -> dict[str, float]:
    """How far the server's probabilities are from the trainer's, token by token; all inputs [num_rows, max R].

    On policy and in the same precision the difference is rounding; more means stale weights or another sampling
    temperature.
    """
    mask = response_mask.bool()
    rollout, actor = torch.exp(rollout_log_probs[mask]), torch.exp(old_log_probs[mask])  # [num_tokens]
    names = ("max", "mean", "std")
    if rollout.numel() == 0:
        nan = {f"training/rollout_probs_diff_{name}": float("nan") for name in names}
        return nan | {"training/rollout_probs_diff_valid": 0, "training/rollout_actor_probs_pearson_corr": float("nan")}
    diff = (rollout - actor).abs()
    values = (diff.max().item(), diff.mean().item(), diff.std().item())
    metrics = {f"training/rollout_probs_diff_{name}": value for name, value in zip(names, values, strict=True)}
    metrics["training/rollout_probs_diff_valid"] = 1
    metrics["training/rollout_actor_probs_pearson_corr"] = torch.corrcoef(torch.stack([actor, rollout]))[0, 1].item()
    return metrics


def staleness_metrics(tags: Sequence[Mapping[str, Any]], global_steps: int) -> dict[str, float]:
    """How old the weights were that wrote each row, in weight versions.

    A row written by versions a..b spans b - a + 1 of them; at step s the actor holds version s - 1, so the row lags s
    - 1 - b (and at worst s - 1 - a).
    """
    oldest = torch.tensor([tag["min_global_steps"] for tag in tags])
    newest = torch.tensor([tag["max_global_steps"] for tag in tags])
    return {
        **summary("training/off_policy/trajectory_spans", newest - oldest + 1),
        **summary("training/off_policy/trajectory_staleness", global_steps - 1 - newest),
        **summary("training/off_policy/trajectory_staleness_worst", global_steps - 1 - oldest),
    }


def to_plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The same numbers as Python ints and floats, for JSON."""
    return {name: value.item() if isinstance(value, np.generic | Tensor) else value for name, value in metrics.items()}
