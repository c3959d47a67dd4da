"""Say the tags of one row, or of many rows, in a few words.

The tag names are those of the contract: status, prompt_len, response_len, seq_len, global_steps, min_global_steps,
max_global_steps, is_padding. A tag that the contract does not know is printed as name=value.

    success  len 11+20  v3  step 4                      one row: prompt 11 tokens, response 20, weights of version 3
    success x126  len 11..13+11..34  v2..v3  step 4     126 rows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kitlib.contract import TAGS
from kitlib.inspector.render.printable import value_of

Tag = Mapping[str, Any]


def describe_tags(tags: Sequence[Tag], with_status: bool = True) -> str:
    """All tags of the given rows in one line; ranges where the rows differ, "no tags" where there are none."""
    if not any(tags):
        return "no tags"
    parts = [
        _statuses(tags) if with_status else "",
        _lengths(tags),
        _versions(tags),
        _range(tags, "global_steps", "step "),
    ]
    parts += [_other(tags, name) for name in sorted({name for tag in tags for name in tag} - TAGS.keys())]
    return "  ".join(part for part in parts if part)


def status_of(tag: Tag) -> str:
    """The status of a key, "no status" when it has none."""
    return value_of(tag["status"]) if "status" in tag else "no status"


def _values(tags: Sequence[Tag], name: str) -> list[Any]:
    return [tag[name] for tag in tags if name in tag]


def _span(values: Sequence[Any]) -> str:
    """`3`, `3..7`, or the distinct words where the values are not numbers."""
    if not values:
        return ""
    if all(isinstance(value, int | float) for value in values):
        low, high = min(values), max(values)
        return f"{low}" if low == high else f"{low}..{high}"
    return "|".join(sorted({value_of(value) for value in values}))


def _range(tags: Sequence[Tag], name: str, prefix: str) -> str:
    values = _values(tags, name)
    return prefix + _span(values) if values else ""


def _statuses(tags: Sequence[Tag]) -> str:
    counts = Counter(status_of(tag) for tag in tags)
    if len(tags) == 1:
        return next(iter(counts))
    return " ".join(f"{status} x{count}" for status, count in counts.most_common())


def _lengths(tags: Sequence[Tag]) -> str:
    prompt, response, whole = (_values(tags, name) for name in ("prompt_len", "response_len", "seq_len"))
    if not (prompt and response):
        alone = {"prompt_len": prompt, "response_len": response, "seq_len": whole}
        return "  ".join(f"{name} {_span(values)}" for name, values in alone.items() if values)
    text = f"len {_span(prompt)}+{_span(response)}"
    agrees = all(_adds_up(tag) for tag in tags if "seq_len" in tag)
    return text if agrees else f"{text}  seq_len {_span(whole)} (not the sum)"


def _adds_up(tag: Tag) -> bool:
    prompt, response, whole = tag.get("prompt_len"), tag.get("response_len"), tag.get("seq_len")
    return isinstance(prompt, int) and isinstance(response, int) and prompt + response == whole


def _versions(tags: Sequence[Tag]) -> str:
    oldest, newest = _values(tags, "min_global_steps"), _values(tags, "max_global_steps")
    if not (oldest or newest):
        return ""
    if None in oldest or None in newest:
        return "v? (no weight version)"
    return f"v{_span(oldest + newest)}"


def _other(tags: Sequence[Tag], name: str) -> str:
    values = _values(tags, name)
    distinct = {value_of(value) for value in values}
    said = f"{name}={distinct.pop()}" if len(distinct) == 1 else f"{name}={len(distinct)} values"
    return said if len(values) == len(tags) else f"{said} (on {len(values)} of {len(tags)})"
