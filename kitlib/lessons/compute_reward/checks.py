"""Checks of scores and of the place of a reward that a reader gave by hand, and of a rule that a reader wrote."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.compute_reward.server import Trouble, count_requests
from kitlib.lessons.plain_checks import check_number
from kitlib.lessons.reading import number_of, numbers_of
from kitlib.reward import compute_score
from kitlib.reward.rules import ANSWER_MARK

MAX_SAID = 3  # mistakes at once

_CONVERSATION = "<tool_call>12+59</tool_call>\ntool\n71\nassistant\n"
RESULT = "71"
# (answer, whether it is right, what it is an example of)
CASES: tuple[tuple[str, bool, str], ...] = (
    ("####71", True, "this is the right answer"),
    ("#### 71", True, "this is the right answer: spaces do not count"),
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
    if unanswered(answer):
        return open_answer()
    said = numbers_of(answer)
    if said is None or len(said) != len(texts):
        return mistakes([f"the answer is a list of {len(texts)} numbers, one a text, not {answer!r}"])
    truth = [float(compute_score(data_source, text, ground_truth)) for text in texts]  # type: ignore[arg-type]
    trios = zip(said, truth, texts, strict=True)
    wrong = [_why(text, score, ground_truth) for number, score, text in trios if number != score]
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


def check_position(answer: Any, row: Any) -> Answer:
    """At which position of its rm_scores does this row hold its reward? The row holds prompts, responses, rm_scores."""
    num_prompt, num_response = len(row["prompts"]), len(row["responses"])
    names: dict[float, str] = {
        num_response: "positions begin with 0",
        0: "the reward is known when the answer is complete",
        num_prompt + num_response - 1: "rm_scores has no number for the tokens of the prompt",
        num_prompt + num_response: "rm_scores has no number for the tokens of the prompt, and positions begin with 0",
        num_response - 2: "the reward is known when the answer is complete, its last token included",
    }
    truth = int(row["rm_scores"].nonzero())
    return check_number(answer, truth, names, right=f"position {truth}: the last of {num_response} response tokens")


def check_num_requests(answer: Any, always: Trouble, num_retries: int) -> Answer:
    """How many requests does a server with this trouble get before `remote_score` gives up? Asks one."""
    names: dict[float, str] = {
        num_retries: "a retry comes after the first try, which is a request, too",
        1: "status 503 may pass, so it is tried again",
        0: "the server is down, but it is asked all the same",
    }
    right_words = f"one try and {num_retries} retries"
    return check_number(answer, count_requests(always, num_retries), names, right=right_words)


def check_rule(rule: Callable[..., Any]) -> Answer:
    """Does this reward function pay for right answers, and for nothing else? Tries honest and cheating answers."""
    wrong = [sentence for case in CASES if (sentence := _judge(rule, *case))]
    if wrong and set(wrong) == {_NOT_WRITTEN}:
        return open_answer()
    if not wrong and (sentence := _judge(rule, "####708", True, _OTHER_RESULT, "708")):
        return mistakes([sentence])
    if wrong:
        more = [f".. and {len(wrong) - MAX_SAID} more"] if len(wrong) > MAX_SAID else []
        return mistakes([*wrong[:MAX_SAID], *more])
    return right(f"{len(CASES)} answers, honest and cheating: each gets what it deserves")


_NOT_WRITTEN = "it returned ..."
_OTHER_RESULT = f"the result is in ground_truth; it is not {RESULT} for every prompt"


def _judge(rule: Callable[..., Any], text: str, is_right: bool, why: str, truth: str = RESULT) -> str:
    """What is wrong with the score of one answer, empty if nothing is. A score above 0 pays."""
    try:
        returned = rule(data_source="kitlib/sum_tool", solution_str=text, ground_truth=truth, extra_info={})
    except Exception as error:  # noqa: BLE001  a reader's function may raise anything
        return f"for {text!r} it raised {type(error).__name__}: {error}"
    if returned is ...:
        return _NOT_WRITTEN
    score = returned.get("score") if isinstance(returned, dict) else returned
    number = int(score) if isinstance(score, bool) else number_of(score)
    if number is None or not math.isfinite(number):
        return f"for {text!r} it returned {returned!r}: a score is a finite number, or a dictionary with one as `score`"
    return "" if (number > 0) == is_right else f"{text!r} gets {number:g}: {why}"
