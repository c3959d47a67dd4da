"""StrictQueue: the same verbs, but nothing narrows in silence and nothing is overwritten by something of another shape.

The package accepts a lot (see local.py). A StrictQueue around any queue checks a put before anything is stored:

    a key twice                         the last row would win
    a key outside the grammar           neither a prompt uid nor {uid}_{session_id}_{index}: no sampler would find it
    a uid with an underscore            the sampler cuts a key at the first one, so the group would be lost
    an overwrite with another dtype     readers of the field would get a strided or an object column
    an overwrite of another shape       the lengths of the fields of one row would no longer agree
    a new field one slip from another   old_log_prob beside old_log_probs: readers of the one do not find the other

and a get that names fields returns every row with every field or raises MissingFieldsError (strict_get).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tensordict import TensorDict, TensorDictBase

from kitlib.keys import is_trajectory_key, uid_of
from kitlib.transfer_queue.columns import describe_fields
from kitlib.transfer_queue.errors import StrictWriteError
from kitlib.transfer_queue.explain import strict_get
from kitlib.transfer_queue.metadata import KVBatchMeta
from kitlib.transfer_queue.protocol import DataParser
from kitlib.transfer_queue.snapshot import PartitionSnapshot, take_snapshot
from kitlib.transfer_queue.twins import AsyncTwins

SHOWN = 8  # problems that an error spells out


class StrictQueue(AsyncTwins):
    """Any queue with strict puts and gets; everything else (`kv_list`, `kv_clear`, `snapshot`) is the queue's own."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def kv_put(
        self,
        key: str,
        partition_id: str,
        fields: TensorDict | dict[str, Any] | None = None,
        tag: dict[str, Any] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """kv_put after the checks. Raises StrictWriteError that lists every problem; nothing is stored then."""
        check_put(self._queue, [key], partition_id, fields)
        return self._queue.kv_put(key, partition_id, fields, tag, data_parser)

    def kv_batch_put(
        self,
        keys: list[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: list[dict[str, Any]] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """kv_batch_put after the checks. Raises StrictWriteError that lists every problem; nothing is stored then."""
        check_put(self._queue, keys, partition_id, fields, tags)
        return self._queue.kv_batch_put(keys, partition_id, fields, tags, data_parser)

    def kv_batch_get(
        self, keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None
    ) -> TensorDict:
        """strict_get if fields are named; without names it fetches what all rows have, but every key must exist."""
        return strict_get(self._queue, keys, select_fields, partition_id)

    def kv_batch_get_by_meta(self, meta: KVBatchMeta, select_fields: list[str] | str | None = None) -> TensorDict:
        """strict_get of `select_fields`, else of the fields of the handle."""
        return strict_get(self._queue, meta, select_fields)


def check_put(
    tq: Any,
    keys: Sequence[str],
    partition_id: str,
    fields: TensorDictBase | dict[str, Any] | None = None,
    tags: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Raise StrictWriteError if a put of these would be legal but surely wrong; stores nothing."""
    problems = list(_key_problems(keys))
    if tags is not None and len(tags) != len(keys):
        problems.append(f"{len(tags)} tags for {len(keys)} keys")
    if fields is not None:
        stored = take_snapshot(tq, partition_id).partitions.get(partition_id)
        if stored is not None:
            problems += _name_problems(stored.fields, fields.keys())
            problems += _overwrite_problems(stored, keys, fields)
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        head = f"put of {len(keys)} keys to partition {partition_id!r} refused, nothing is stored:"
        raise StrictWriteError("\n  ".join([head, *problems[:SHOWN], *more]))


def _key_problems(keys: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            yield f"key {key!r} is given twice"
        seen.add(key)
        if "_" in key and not is_trajectory_key(key):
            yield (
                f"key {key!r} is neither a prompt uid (no underscore) nor {{uid}}_{{session_id}}_{{index}}; "
                f"the sampler would take it for group {uid_of(key)!r}"
            )


def _name_problems(known: Sequence[str], names: Iterable[str]) -> Iterator[str]:
    for name in names:
        meant = [] if name in known else [field for field in known if is_slip(name, field)]
        if meant:
            yield f"field {name!r} is new to the partition and all but the name of {meant[0]!r}: did you mean that?"


def is_slip(name: str, other: str) -> bool:
    """True if two names differ in case and underscores only, or in one letter: lost, added, wrong or swapped.

    Names shorter than eight letters are taken as they are (verl has both prompt and prompts), and so are names that
    differ in a digit.
    """
    left, right = (text.replace("_", "").replace("-", "").lower() for text in (name, other))
    if left == right:
        return True
    for _ in ("the common beginning goes", "the common end goes"):
        start = next(
            (n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
        )
        left, right = left[start:][::-1], right[start:][::-1]
    is_one_letter = max(len(left), len(right)) == 1 or (len(left) == 2 and left == right[::-1])
    return is_one_letter and min(len(name), len(other)) >= 8 and not any(map(str.isdigit, left + right))


def _overwrite_problems(
    stored: PartitionSnapshot, keys: Sequence[str], fields: TensorDictBase | dict[str, Any]
) -> Iterator[str]:
    known = [(row, stored.row_of[key]) for row, key in enumerate(keys) if key in stored]
    places = [place for _, place in known]
    for field, cells in describe_fields(fields).items():
        if field not in stored.column_of:
            continue
        codes = stored.codes[places, stored.column_of[field]].tolist()
        for (row, _), code in zip(known, codes, strict=True):
            old, new = stored.cells[code], cells[row]
            if code and old[:3] != new[:3] and not (old.layout == "object" == new.layout):
                yield f"{field} of {keys[row]}: {_words(new)} over {_words(old)}"


def _words(cell: Any) -> str:
    return cell.dtype if cell.layout == "object" else f"{cell.dtype} {list(cell.shape)}"
