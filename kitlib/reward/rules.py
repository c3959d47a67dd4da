"""Rules that score an answer by reading it: the reward functions of the shipped tasks, and GSM8K.

verl 0.9.1: utils/reward_score/__init__.py (default_compute_score) and utils/reward_score/gsm8k.py. A rule has verl's
signature

    compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float | dict

where `solution_str` is the whole decoded response without special tokens. In a multi-turn response that includes what
the tools said and the words that open each turn, for example

    <tool_call>12*59</tool_call>\\ntool\\n708\\nassistant\\n####708

Left out: the other data sources of verl, and code execution.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kitlib.errors import KitError

Score = float | dict[str, Any]
RewardFn = Callable[..., Any]  # returns Score, or an awaitable of it

ANSWER_MARK = "####"
_GSM8K_ANSWER = re.compile(re.escape(ANSWER_MARK) + r"\s*\$?(-?[0-9.,]+)")
_RULES: dict[str, RewardFn] = {}


class RewardError(KitError):
    """A trajectory that cannot be scored; the message names the trajectory, the function and the way out."""


def register_rule(*data_sources: str) -> Callable[[RewardFn], RewardFn]:
    """Use the decorated function for rows with one of these `data_source` values."""

    def decorate(rule: RewardFn) -> RewardFn:
        for data_source in data_sources:
            _RULES[data_source] = rule
        return rule

    return decorate


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> Score:
    """Score with the rule registered for `data_source`. Raises RewardError for a data source without one."""
    rule = _RULES.get(data_source)
    if rule is None:
        raise RewardError(
            f"no reward rule for data_source {data_source!r} (there are rules for {', '.join(sorted(_RULES))}); "
            "name a file with your own function in reward.custom_reward_function.path"
        )
    return rule(data_source, solution_str, ground_truth, extra_info, **kwargs)


@register_rule("kitlib/mult_tool", "kitlib/sum_tool")
def score_tool_answer(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> float:
    """1.0 if the response ends with `#### answer`, else 0.0. How often and how well the tool was used does not count.

    Everything behind the last mark must be the answer, so a response that calls the tool after answering, or adds
    a word, scores 0.0.
    """
    _, mark, answer = solution_str.rpartition(ANSWER_MARK)
    return float(bool(mark) and _same_number(answer, ground_truth))


@register_rule("kitlib/add")
def score_plain_answer(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> float:
    """1.0 if the response is the answer, with or without `####` before it, else 0.0."""
    return float(_same_number(solution_str.strip().removeprefix(ANSWER_MARK), ground_truth))


@register_rule("openai/gsm8k")
def score_gsm8k(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> float:
    """1.0 if the number after the last `####` equals the ground truth; commas and a dollar sign do not matter."""
    numbers = _GSM8K_ANSWER.findall(solution_str)
    return float(bool(numbers) and numbers[-1].replace(",", "").rstrip(".") == str(ground_truth).replace(",", ""))


def _same_number(answer: str, ground_truth: Any) -> bool:
    """Compares text, not values: 0708 and 708.0 are not 708. Spaces do not matter: some tokenizers decode with them."""
    return "".join(answer.split()) == str(ground_truth).strip()
