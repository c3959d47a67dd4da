"""What is different between two pictures of one partition, as plain records.

Compared are keys, tags, presence and the look of every value (dtype, shape, layout), all without reading a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kitlib.inspector.render.printable import value_of
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.shapes import describe_cells, num_bytes, size_text
from kitlib.transfer_queue import Cell, PartitionSnapshot

What = Literal["added", "cleared", "put", "rewritten", "gone", "tag"]
NO_TAG = "-"


@dataclass(frozen=True)
class Change:
    """`what` happened to `subject` (a field, a tag, "rows" or "prompt markers") on `keys`; bytes of what is there
    now."""

    what: What
    subject: str
    keys: tuple[str, ...]
    before: str = ""
    now: str = ""
    num_bytes: int = 0


@dataclass(frozen=True)
class _Pair:
    """Two pictures of a partition and where the keys that stand in both are."""

    before: PartitionSnapshot
    after: PartitionSnapshot
    keys: tuple[str, ...]
    rows_before: list[int]
    rows_after: list[int]


def changes(before: PartitionSnapshot | None, after: PartitionSnapshot | None) -> list[Change]:
    """Rows added, rows cleared, then per field what was put, rewritten or lost, then per tag what it was and is."""
    old = {key: i for i, key in enumerate(before.keys)} if before else {}
    new = {key: i for i, key in enumerate(after.keys)} if after else {}
    found: list[Change] = []
    if after is not None:
        found += _moved("added", after, [key for key in new if key not in old], new)
    if before is not None:
        found += _moved("cleared", before, [key for key in old if key not in new], old)
    kept = tuple(key for key in old if key in new)
    if before is not None and after is not None and kept:
        pair = _Pair(before, after, kept, [old[key] for key in kept], [new[key] for key in kept])
        found += [*_fields(pair), *_tags(pair)]
    return found


def _moved(what: What, partition: PartitionSnapshot, keys: list[str], row_of: dict[str, int]) -> Iterator[Change]:
    """Keys that came or went, markers apart from rows, with what they hold."""
    markers = [key for key in keys if partition.tags[row_of[key]].get("is_prompt")]
    rows = [key for key in keys if not partition.tags[row_of[key]].get("is_prompt")]
    for subject, members in (("prompt markers", markers), ("rows", rows)):
        if members:
            positions = [row_of[key] for key in members]
            size = num_bytes(partition, positions)
            num_fields = int((partition.present[positions].sum(axis=0) > 0).sum())
            load = f"{count(num_fields, 'field')}, {size_text(size)}" if num_fields else "tags only"
            was, now = ("", load) if what == "added" else (load, "")
            yield Change(what, subject, tuple(members), was, now, size if what == "added" else 0)


def _fields(pair: _Pair) -> Iterator[Change]:
    cells = list(dict.fromkeys([pair.before.cells[0], *pair.before.cells, *pair.after.cells]))  # 0 stays "absent"
    for field in dict.fromkeys([*pair.before.fields, *pair.after.fields]):
        was = _looks(pair.before, pair.rows_before, field, cells)  # [num_rows]
        now = _looks(pair.after, pair.rows_after, field, cells)  # [num_rows]
        cases: tuple[tuple[What, np.ndarray], ...] = (
            ("put", (was == 0) & (now > 0)),
            ("rewritten", (was > 0) & (now > 0) & (was != now)),
            ("gone", (was > 0) & (now == 0)),
        )
        for what, where in cases:
            if where.any():
                keys = tuple(pair.keys[i] for i in np.flatnonzero(where))
                size = sum(cells[code].num_bytes for code in now[where])
                yield Change(what, field, keys, _described(was[where], cells), _described(now[where], cells), size)


def _looks(partition: PartitionSnapshot, rows: list[int], field: str, cells: Sequence[Cell]) -> np.ndarray:
    """Position of each row's look in `cells`, 0 where the field is absent: int [num_rows]."""
    if field not in partition.fields:
        return np.zeros(len(rows), dtype=int)
    position = {cell: i for i, cell in enumerate(cells)}
    common = np.array([position[cell] for cell in partition.cells])  # [num_cells of this snapshot]
    return common[partition.codes[rows, partition.fields.index(field)]]


def _described(codes: np.ndarray, cells: Sequence[Cell]) -> str:
    return describe_cells(cells[code] for code in np.unique(codes) if code)


def _tags(pair: _Pair) -> Iterator[Change]:
    changed: dict[str, list[tuple[str, str, str]]] = {}
    for key, i, j in zip(pair.keys, pair.rows_before, pair.rows_after, strict=True):
        was, now = pair.before.tags[i], pair.after.tags[j]
        for name in [*was, *(name for name in now if name not in was)] if was is not now else ():
            if (old := _tag_text(was, name)) != (new := _tag_text(now, name)):
                changed.setdefault(name, []).append((key, old, new))
    for name, cells in changed.items():
        keys = tuple(key for key, _, _ in cells)
        yield Change("tag", name, keys, _counted(old for _, old, _ in cells), _counted(new for _, _, new in cells))


def _tag_text(tag: dict[str, Any], name: str) -> str:
    return value_of(tag[name]) if name in tag else NO_TAG


def _counted(values: Iterable[str]) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return listed([f"{value} x{number}" for value, number in counts.most_common()], 4)
