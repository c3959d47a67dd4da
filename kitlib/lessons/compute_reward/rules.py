"""Reward functions for a lesson. They have verl's signature, so a config can name them:

reward.custom_reward_function.path=pkg://kitlib.lessons.compute_reward.rules  reward.custom_reward_function.name=hasty
"""

from __future__ import annotations

import re
import time
from typing import Any

import torch

from kitlib.reward import compute_score

CALL = re.compile(r"<tool_call>(.*?)</tool_call>")


def hasty(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None) -> float:
    """1.0 if the right number stands anywhere in the text. Easy to cheat."""
    return float(str(ground_truth) in solution_str)


def with_details(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The score of the rule of this data source, and the number of calls, but only if there are any."""
    score = compute_score(data_source, solution_str, ground_truth, extra_info)
    calls = CALL.findall(solution_str)
    return {"score": score, "acc": score, **({"num_calls": len(calls)} if calls else {})}


def mean_over_calls(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    """The share of the calls that are short. The mean over no call at all is NaN."""
    return torch.tensor([float(len(call) < 8) for call in CALL.findall(solution_str)]).mean().item()


def slow(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    seconds: float = 3.0,
) -> float:
    """A rule that takes its time."""
    time.sleep(seconds)
    return 1.0
