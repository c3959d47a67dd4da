"""What happens to Python objects (tags, non-tensor fields) on their way into and out of the store.

The TransferQueue package sends everything between processes, so a reader never shares an object with a writer, and
tuples and sets arrive as lists (msgpack knows no others). This store lives in one process and has to copy to behave the
same: otherwise a row that is changed after a get would change in the queue as well.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kitlib.transfer_queue.errors import QueueTypeError

# Values that nobody can change: they are shared, not copied. `copy_tag` and friends are quick because most values are
# these.
ATOMS = frozenset({str, int, float, bool, bytes, complex, type(None)})


def copy_value(value: Any) -> Any:
    """An independent copy of a value that is in the store; types are kept."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        return value.copy() if is_flat(value) else {key: copy_value(item) for key, item in value.items()}
    if kind is list:
        return [copy_value(item) for item in value]
    return copy.deepcopy(value)


def stored_value(value: Any) -> Any:
    """An independent copy as the store keeps it: tuples and sets become lists, at any depth of dicts and lists."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        return value.copy() if is_flat(value) else {key: stored_value(item) for key, item in value.items()}
    if kind is list or isinstance(value, tuple | set | frozenset):
        return [stored_value(item) for item in value]
    try:
        return copy.deepcopy(value)
    except Exception as error:  # whatever the type's own copying raises: locks, open files, generators, ...
        raise QueueTypeError(f"a {kind.__name__} cannot be copied into the queue: {error}") from error


def is_flat(tag: Mapping[str, Any]) -> bool:
    """True if a shallow copy of the tag is an independent copy."""
    return ATOMS.issuperset(map(type, tag.values()))


def stored_tag(tag: Mapping[str, Any]) -> dict[str, Any]:
    """A tag as the store keeps it. Raises QueueTypeError if it is no mapping."""
    if not isinstance(tag, Mapping):
        raise QueueTypeError(f"a tag is a dict of names and values, not {type(tag).__name__}: {tag!r:.60}")
    plain = dict(tag)
    return plain if is_flat(plain) else stored_value(plain)


def copy_tag(tag: Mapping[str, Any]) -> dict[str, Any]:
    """An independent copy of a tag; types are kept."""
    plain = dict(tag)
    return plain if is_flat(plain) else copy_value(plain)
