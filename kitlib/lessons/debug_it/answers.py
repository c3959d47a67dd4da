"""Checks of notebook 13; the truth comes from the run, the log or the rows."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from kitlib.inspector.doctor import RunCheck
from kitlib.inspector.doctor.root_cause import root_cause
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.plain_checks import check_number
from kitlib.lessons.reading import name_of, number_of

_STOPS = {
    1: "each override has arrived",
    2: "it is V1, and the mode is the one that was meant",
    4: "lengths are compared after presence: one answer before",
    5: "the workers are there",
    6: "no task has failed",
    7: "the formula is wrong, too, but a fault above it stops the check first",
}


def check_stop(answer: Any, found: RunCheck) -> Answer:
    """At which question does the check stop?"""
    truth = found.failed.number if found.failed is not None else 0
    names = {float(number): says for number, says in _STOPS.items() if number != truth}
    said = found.failed.says.split(".")[0] if found.failed is not None else ""
    return check_number(answer, truth, names, right=f"question {truth}: {said}")


def check_first_error(answer: Any, log: str) -> Answer:
    """Which error is the cause? The name of its class is enough, or the class, or an error of it."""
    if unanswered(answer):
        return open_answer()
    cause = root_cause(log)
    known = type(answer) if isinstance(answer, BaseException) else answer
    name = known.__name__ if isinstance(known, type) else name_of(known)
    word = name.split(":")[0].split(".")[-1]
    if word == cause.split(":")[0]:
        return right(cause)
    if word.startswith("RayTaskError"):
        return mistakes(["RayTaskError only carries the error of another process to this one"])
    if word == "KeyError":
        return mistakes(["the KeyError is printed last: it says what was missing, not why. What happened before it?"])
    if word == "RuntimeError":
        return mistakes(["the RuntimeError has a direct cause, and the log says which"])
    return mistakes([f"no traceback of this log ends in {word!r}"])


def check_factor(answer: Any, num_rows: int) -> Answer:
    """By which factor are advantages larger if the standard deviation is taken with n instead of n - 1?"""
    truth = math.sqrt(num_rows / (num_rows - 1))
    names = {
        num_rows / (num_rows - 1): "that is the factor of the variance: take the root",
        (num_rows - 1) / num_rows: "that is the variance, the other way round",
        1 / truth: "the other way round: a smaller divisor makes larger advantages",
        1.0: "with equal formulas the factor would be 1",
    }
    return check_number(answer, truth, names, right=f"sqrt({num_rows}/{num_rows - 1}) = {truth:.4f}")


def number_or_quoted(value: Any) -> float:
    """A number, or one in quotes as a script has it; NaN for anything else."""
    number = number_of(value)
    if number is None and isinstance(value, str):
        with suppress(ValueError):
            number = float(value)
    return math.nan if number is None else float(number)
