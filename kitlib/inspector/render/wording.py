"""Small pieces of sentences that several views share, so that the same thing is said in the same words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_NAMED = 6


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 row`, `128 rows`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], limit: int = MAX_NAMED) -> str:
    """`a, b, c` or `a, b, .. (+12)`: the first names and how many are left out."""
    left_out = len(names) - limit
    return ", ".join(names) if left_out <= 0 else f"{', '.join(names[:limit])}, .. (+{left_out:,})"


def joined(names: Sequence[str], word: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}" if names else ""


def lacks(num_lacking: int, num_rows: int, field: str, keys: Sequence[str], show: Callable[[str], str]) -> str:
    """`1 of 128 rows lacks rm_scores (9c02_5_0)`; the keys are named while they are few."""
    if num_lacking == num_rows:
        return f"no row has {field}" if num_rows > 1 else f"the row lacks {field}"
    named = f" ({', '.join(show(key) for key in keys)})" if num_lacking <= 2 else ""
    return f"{num_lacking:,} of {count(num_rows, 'row')} {'lacks' if num_lacking == 1 else 'lack'} {field}{named}"
