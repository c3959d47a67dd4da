"""Checks of scores that a reader gave by hand, and of a rule that a reader wrote."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.reward import compute_score
from kitlib.reward.rules import ANSWER_MARK

MAX_SAID = 3  # mistakes at once

_CONVERSATION = "<tool_call>12+59</tool_call>\ntool\n71\nassistant\n"
# (answer, whether it is right, what it is an example of); the result is 71
CASES: tuple[tuple[str, bool, str], ...] = (
    ("####71", True, "this is the right answer"),
    (_CONVERSATION + "####71", True, "what stands before the answer must not matter"),
    (_CONVERSATION + "####17", False, "the 71 was said by the tool, and the model copied it wrongly"),
    ("####710", False, "71 is only a part of another number"),
    ("####171", False, "71 is only a part of another number"),
    ("####70 71 72", False, "a list of guesses is no answer"),
    ("####70####71####72", False, "of several answers, the last one is the answer"),
    ("12+59=71", False, "there is no #### before it, so it is no answer"),
    (_CONVERSATION, False, "there is no #### at all, so there is no answer"),
    ("", False, "there is no answer"),
)


def check_scores(answer: Any, texts: Sequence[str], data_source: str, ground_truth: str) -> Answer:
    """What does the rule of this data source give for each text? `answer` is a list of numbers."""
    if unanswered(answer) or (isinstance(answer, list | tuple) and unanswered(*answer)):
        return open_answer()
    if not isinstance(answer, list | tuple) or len(answer) != len(texts):
        return mistakes([f"the answer is a list of {len(texts)} numbers, one a text"])
    truth = [float(compute_score(data_source, text, ground_truth)) for text in texts]  # type: ignore[arg-type]
    wrong = [
        _why(text, score, ground_truth) for said, score, text in zip(answer, truth, texts, strict=True) if said != score
    ]
    return mistakes(wrong[:MAX_SAID]) if wrong else right("the rule gives the same scores")


def _why(text: str, score: float, ground_truth: str) -> str:
    """Why the rule gives this score to this text, where a reader thought otherwise."""
    before, mark, last = text.rpartition(ANSWER_MARK)
    if score:
        return f"{text!r} gets 1: the last {ANSWER_MARK} is followed by the result, and nothing else matters"
    if not mark:
        return f"{text!r} gets 0: without {ANSWER_MARK} there is no answer"
    if ground_truth in before:
        return f"{text!r} gets 0: only what stands behind the last {ANSWER_MARK} counts"
    if last.strip().lstrip("0") == ground_truth:
        return f"{text!r} gets 0: the rule compares texts, not numbers"
    return f"{text!r} gets 0: all that stands behind the last {ANSWER_MARK} must be the result"


def check_rule(rule: Callable[..., Any]) -> Answer:
    """Does this reward function pay for right answers, and for nothing else? Tries honest and cheating answers."""
    wrong = [sentence for case in CASES if (sentence := _judge(rule, *case))]
    if all(sentence.startswith(_NOT_WRITTEN) for sentence in wrong) and wrong:
        return open_answer()
    if wrong:
        more = [f".. and {len(wrong) - MAX_SAID} more"] if len(wrong) > MAX_SAID else []
        return mistakes([*wrong[:MAX_SAID], *more])
    return right(f"{len(CASES)} answers, honest and cheating: each gets what it deserves")


_NOT_WRITTEN = "it returned ..."


def _judge(rule: Callable[..., Any], text: str, is_right: bool, why: str) -> str:
    """What is wrong with the score of one answer, empty if nothing is."""
    try:
        score = rule(data_source="kitlib/sum_tool", solution_str=text, ground_truth="71", extra_info={})
    except Exception as error:  # noqa: BLE001  a reader's function may raise anything
        return f"for {text!r} it raised {type(error).__name__}: {error}"
    if score is ...:
        return _NOT_WRITTEN
    if not isinstance(score, int | float) or not math.isfinite(score):
        return f"for {text!r} it returned {score!r}: a score is a finite number"
    if bool(score) == is_right:
        return ""
    return f"{text!r} gets {score:g}: {why}"
