"""What a reader has answered, as Python's own: numbers of numpy and torch, lists in any dress, names with blanks, short
keys.

Each function gives None where the answer is something else, so that a check can say what it wants.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


def names_of(answer: Any) -> set[str] | None:
    """The names of an answer, None if it is not several strings: a set, a list, the keys of a dict or a batch."""
    if isinstance(answer, dict) and not answer:  # {} is an empty dict to Python, an empty set to most readers
        return set()
    if isinstance(answer, str | Mapping) or not isinstance(answer, Iterable):
        return None
    names = list(answer)
    return {name.strip() for name in names} if all(isinstance(name, str) for name in names) else None


def name_of(answer: Any) -> str:
    """One name, without spaces around it; the name in a list or set that holds nothing else."""
    if isinstance(answer, set | list | tuple) and len(answer) == 1:
        (answer,) = answer
    return str(answer).strip()


def plain_number(answer: Any) -> Any:
    """A scalar of torch or numpy, or a tensor of one element, as Python's own number; anything else as it is."""
    size = answer.numel() if hasattr(answer, "numel") else getattr(answer, "size", None)
    return answer.item() if size == 1 else answer


def number_of(answer: Any) -> int | float | None:
    """A number of Python, numpy or torch as Python's own; None if the answer is none."""
    value = plain_number(answer)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return value


def whole_number_of(answer: Any) -> int | None:
    """A whole number of Python, numpy or torch (2 or 2.0); None if the answer is none."""
    number = number_of(answer)
    return int(number) if number is not None and float(number).is_integer() else None


def yes_or_no_of(answer: Any) -> bool | None:
    """True or False of Python, numpy or torch; None if the answer is neither."""
    value = plain_number(answer)
    return value if isinstance(value, bool) else None


def numbers_of(answer: Any) -> list[float] | None:
    """The finite numbers of a list, tuple, range, array or tensor, in their order; True counts as 1. Else None."""
    items = answer.reshape(-1).tolist() if hasattr(answer, "reshape") else answer
    if not isinstance(items, list | tuple | range):
        return None
    values = [plain_number(item) for item in items]
    return [float(value) for value in values] if all(map(_is_finite, values)) else None


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def whole_numbers_of(answer: Any) -> list[int] | None:
    """The whole numbers of a list, tuple, range, array or tensor in their order, those of a set sorted; else None."""
    items = answer.tolist() if hasattr(answer, "tolist") else [] if answer == {} else answer  # {}: see names_of
    if not isinstance(items, list | tuple | range | set | frozenset):
        return None
    numbers = [number_of(item) for item in items]
    whole = [int(number) for number in numbers if number is not None and float(number).is_integer()]
    if len(whole) < len(numbers):
        return None
    return sorted(whole) if isinstance(items, set | frozenset) else whole


def meant_by(name: str, known: Iterable[str]) -> list[str]:
    """The uids or keys that a whole or a shortened one may stand for: `f3a1` for a uid, `f3a1_2_0` for a key."""
    uid, _, rest = name.partition("_")
    parts = [(one, *one.partition("_")) for one in known]
    return [one for one, begin, _, end in parts if name and begin.startswith(uid) and end == rest]
