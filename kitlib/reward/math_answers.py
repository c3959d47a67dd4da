"""Mathematical answers: equal if they mean the same, not only if they are spelled the same.

verl 0.9.1: utils/reward_score/math_verify.py (with the package) and math_reward.py (is_equiv and
last_boxed_only_string, without). With the package math-verify installed, 1/2, 0.5 and \\frac{1}{2} are equal; without
it only the text of the last \\boxed{...} is compared, after spaces, \\left, \\right, $ and the like are taken out.
`has_math_verify` tells which.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from functools import lru_cache
from typing import Any

from kitlib.reward.rules import register_rule

DATA_SOURCES = ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "kitlib/math")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_NOISE = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\ |\\text\s*\{\s*\}|[\s$]|(?<=\d),(?=\d{3}\b)")
_SPELLINGS = (("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("^{\\circ}", ""), ("^\\circ", ""), ("\\%", ""), ("%", ""))


@lru_cache(maxsize=1)
def has_math_verify() -> bool:
    """Whether the package math-verify is installed."""
    return importlib.util.find_spec("math_verify") is not None


@register_rule(*DATA_SOURCES)
def score_math(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, Any]:
    """score and acc: 1.0 if the answer in the last \\boxed{} equals the ground truth. pred: the answer."""
    answer = last_boxed(solution_str)
    right = answer is not None and same_answer(answer, str(ground_truth))
    return {"score": float(right), "acc": float(right), "pred": answer or ""}


def same_answer(answer: str, truth: str) -> bool:
    """Whether two answers (LaTeX, without the box) are equal."""
    return plain(answer) == plain(truth) or (has_math_verify() and _verified(answer, truth))


def last_boxed(text: str) -> str | None:
    """What stands in the last \\boxed{...} or \\fbox{...}, braces balanced; None if there is none or it is open."""
    starts = [match.end() for match in _BOXED.finditer(text)]
    if not starts:
        return None
    depth = 1
    for position in range(starts[-1], len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[starts[-1] : position]
    return None


def plain(answer: str) -> str:
    """One spelling of an answer: without spaces and signs that mean nothing."""
    text = _NOISE.sub("", answer).rstrip(".")
    for spelled, same in _SPELLINGS:
        text = text.replace(spelled, same)
    return text


def _verified(answer: str, truth: str) -> bool:
    """By math-verify, whose own time limits are off: they use signals, which only the main thread gets."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it would warn of the missing limits
    parsed_truth, parsed = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (truth, answer))
    return bool(verify(parsed_truth, parsed, timeout_seconds=None))
