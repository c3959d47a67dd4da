"""Checks of a prediction whose truth is at hand: a number, a choice, a set of names, an order.

    check_number(answer, truth, mistakes={0.5: "that divides by n, and torch.std divides by n - 1"})
    check_choice(answer, "stuck", {"stuck": "the marker says running", "lost": "a lost row has no key"})
    check_names(answer, {"advantages"}, mistakes={"values": "only the critic writes values"})
    check_order(answer, ["submit", "sample"], because={("submit", "sample"): "only what was submitted can be sampled"})

The truth is computed, never typed: pass what the queue or the library says. `mistakes` maps a wrong answer to the
sentence that names the thought behind it. Each function first asks the `*_mistakes` function of the same name, which
gives the sentences alone (none: the answer is right).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kitlib.inspector.render.wording import count, joined
from kitlib.lessons import answers
from kitlib.lessons.answers import Answer, open_answer, unanswered
from kitlib.lessons.reading import name_of, names_of, number_of, plain_number
from kitlib.transfer_queue.explain import near_names


def check_number(
    answer: Any,
    truth: float,
    mistakes: Mapping[float, str] | None = None,
    *,
    tolerance: float = 1e-3,
    right: str = "",
) -> Answer:
    """A number, right within `tolerance` (absolute, and relative for large ones). `right`: what to say if it is."""
    if unanswered(answer):
        return open_answer()
    said = number_mistakes(answer, truth, mistakes or {}, tolerance)
    return answers.mistakes(said) if said else answers.right(right or f"{plain_number(truth):g}")


def check_choice(answer: Any, truth: str, choices: Mapping[str, str]) -> Answer:
    """One of some words. `choices` says of each why it is right or why it is not; the truth is one of them."""
    if unanswered(answer):
        return open_answer()
    said = choice_mistakes(answer, truth, choices)
    return answers.mistakes(said) if said else answers.right(choices[truth])


def check_names(
    answer: Any, truth: Collection[str], mistakes: Mapping[str, str] | None = None, *, hint: str = "", right: str = ""
) -> Answer:
    """A set (or list) of names. hint: said when some are missing, without giving them away."""
    if unanswered(answer):
        return open_answer()
    said = names_mistakes(answer, truth, mistakes or {}, hint)
    return answers.mistakes(said) if said else answers.right(right or f"{joined(sorted(truth))}, and nothing else")


def check_order(
    answer: Any, truth: Sequence[str], because: Mapping[tuple[str, str], str] | None = None, *, right: str = ""
) -> Answer:
    """A list in the right order. because: for two names, why the first one has to come before the second."""
    if unanswered(answer):
        return open_answer()
    said = order_mistakes(answer, truth, because or {})
    return answers.mistakes(said) if said else answers.right(right or " > ".join(truth))


def number_mistakes(answer: Any, truth: float, mistakes: Mapping[float, str], tolerance: float = 1e-3) -> list[str]:
    """What is wrong with a number: a named mistake, a flipped sign, one more or less, too large or too small."""
    value, truth = number_of(answer), float(plain_number(truth))
    if value is None:
        return [f"the answer is a number, not {answer!r}"]
    if _close(value, truth, tolerance):
        return []
    return [f"not {value:g}: {_slip(value, truth, mistakes, tolerance)}"]


def choice_mistakes(answer: Any, truth: str, choices: Mapping[str, str]) -> list[str]:
    """What is wrong with a choice: its own sentence, or that it is none."""
    assert truth in choices, f"the truth {truth!r} is not among {list(choices)}"
    said = name_of(answer)
    if said == truth:
        return []
    if said in choices:
        return [f"not {said!r}: {choices[said]}"]
    return [f"{answer!r} is none of {joined([repr(name) for name in choices], 'or')}"]


def names_mistakes(answer: Any, truth: Collection[str], mistakes: Mapping[str, str], hint: str = "") -> list[str]:
    """What is wrong with a set of names: each one that does not belong, and how many are missing."""
    said = names_of(answer)
    if said is None:
        return [f'the answer is a set of names, such as {{"prompts", "responses"}}, not {answer!r}']
    out = [_stray(name, truth, mistakes) for name in sorted(said - set(truth))]
    if missing := len(set(truth) - said):
        out.append(f"{count(missing, 'name')} still missing from your answer{f': {hint}' if hint else ''}")
    return out


def order_mistakes(answer: Any, truth: Sequence[str], because: Mapping[tuple[str, str], str]) -> list[str]:
    """What is wrong with an order: names that are none or missing; else the first pair that stands the wrong way."""
    if not isinstance(answer, list | tuple) or not all(isinstance(name, str) for name in answer):
        return [f"the answer is a list of names in their order, not {answer!r}"]
    answer = [name.strip() for name in answer]
    strange = names_mistakes(set(answer), truth, {})
    if strange or len(answer) != len(truth):
        return strange or ["a name stands in the list more than once"]
    place = {name: number for number, name in enumerate(truth)}
    for one, other in pairwise(answer):
        if place[one] > place[other]:
            reasons = (f": {why}" for pair, why in because.items() if pair == (other, one))
            return [f"{one} does not come before {other}{next(reasons, '')}"]
    return []


def _slip(value: float, truth: float, mistakes: Mapping[float, str], tolerance: float) -> str:
    """The thought behind a wrong number."""
    for number, sentence in mistakes.items():
        if _close(value, float(number), tolerance):
            return sentence
    if truth and _close(value, -truth, tolerance):
        return "the size is right and the sign is not"
    if truth.is_integer() and abs(value - truth) == 1:
        return "one too many" if value > truth else "one too few"
    return "that is too large" if value > truth else "that is too small"


def _stray(name: str, truth: Collection[str], mistakes: Mapping[str, str]) -> str:
    if name in mistakes:
        return f"{name}: {mistakes[name]}"
    near = joined(near_names(name, truth), "or")
    return f"{name} does not belong here" + (f"; did you mean {near}?" if near else "")


def _close(value: float, other: float, tolerance: float) -> bool:
    return math.isclose(value, other, rel_tol=tolerance, abs_tol=tolerance)
