"""What changed between two snapshots: rows, fields, tags. A pure function of the two; no value is compared.

An overwrite shows if dtype, shape or layout changed. An overwrite with the same shape leaves no trace in a snapshot;
the event log (events.py) has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kitlib.transfer_queue.cells import Cell, CellTable
from kitlib.transfer_queue.snapshot import PartitionSnapshot, QueueSnapshot

MISSING = "(no such tag)"


@dataclass(frozen=True)
class Overwrite:
    """One cell that looks different now."""

    key: str
    field: str
    before: Cell
    after: Cell


@dataclass(frozen=True)
class PartitionDiff:
    """Changes of one partition, from `before` to `after`.

    fields_added and fields_removed: {field: keys}, of rows that are in both snapshots. tags_changed: {key: {name:
    (old, new)}}, with MISSING for a name that is not there. order_changed: the rows in both appear in another order.
    """

    partition_id: str
    rows_added: tuple[str, ...]
    rows_cleared: tuple[str, ...]
    fields_added: dict[str, tuple[str, ...]]
    fields_removed: dict[str, tuple[str, ...]]
    overwritten: tuple[Overwrite, ...]
    tags_changed: dict[str, dict[str, tuple[Any, Any]]]
    order_changed: bool

    def __bool__(self) -> bool:
        return any(
            (
                self.rows_added,
                self.rows_cleared,
                self.fields_added,
                self.fields_removed,
                self.overwritten,
                self.tags_changed,
                self.order_changed,
            )
        )


@dataclass(frozen=True)
class SnapshotDiff:
    """Partitions that changed, and rows that left one partition and appeared in another: {key: (from, to)}."""

    partitions: dict[str, PartitionDiff]
    rows_moved: dict[str, tuple[str, str]]
    seconds: float

    def __bool__(self) -> bool:
        return bool(self.partitions)


def diff(before: QueueSnapshot, after: QueueSnapshot) -> SnapshotDiff:
    """What changed from `before` to `after`."""
    changed = {}
    for name in dict.fromkeys([*before.partitions, *after.partitions]):
        part = _partition_diff(name, before.partitions.get(name), after.partitions.get(name))
        if part:
            changed[name] = part
    cleared = {key: name for name, part in changed.items() for key in part.rows_cleared}
    moved = {k: (cleared[k], name) for name, part in changed.items() for k in part.rows_added if k in cleared}
    return SnapshotDiff(changed, moved, after.taken_at - before.taken_at)


def _partition_diff(name: str, old: PartitionSnapshot | None, new: PartitionSnapshot | None) -> PartitionDiff:
    old_keys, new_keys = (() if part is None else part.keys for part in (old, new))
    old_set, new_set = set(old_keys), set(new_keys)
    both = [key for key in new_keys if key in old_set]
    added: dict[str, list[str]] = {}
    removed: dict[str, list[str]] = {}
    overwritten = []
    if old is not None and new is not None:
        for key, field, was, now in _changed_cells(old, new, both):
            if was is None:
                added.setdefault(field, []).append(key)
            elif now is None:
                removed.setdefault(field, []).append(key)
            else:
                overwritten.append(Overwrite(key, field, was, now))
    return PartitionDiff(
        partition_id=name,
        rows_added=tuple(key for key in new_keys if key not in old_set),
        rows_cleared=tuple(key for key in old_keys if key not in new_set),
        fields_added={field: tuple(keys) for field, keys in added.items()},
        fields_removed={field: tuple(keys) for field, keys in removed.items()},
        overwritten=tuple(overwritten),
        tags_changed={} if old is None or new is None else _changed_tags(old, new, both),
        order_changed=both != [key for key in old_keys if key in new_set],
    )


def _changed_cells(
    old: PartitionSnapshot, new: PartitionSnapshot, keys: list[str]
) -> Iterator[tuple[str, str, Cell | None, Cell | None]]:
    """(key, field, before, after) of every cell of these keys that differs; None stands for absent."""
    fields, words = list(dict.fromkeys([*new.fields, *old.fields])), CellTable()
    was, now = _translated(old, keys, fields, words), _translated(new, keys, fields, words)
    for column, row in np.argwhere((was != now).T).tolist():
        before, after = (words.cells[code] if code else None for code in (was[row, column], now[row, column]))
        yield keys[row], fields[column], before, after


def _translated(part: PartitionSnapshot, keys: list[str], fields: list[str], words: CellTable) -> np.ndarray:
    """The codes of these keys and fields in a table that two snapshots share: int [num_keys, num_fields]."""
    codes = np.zeros((len(keys), len(fields)), dtype=np.int64)
    rows = np.array([part.row_of[key] for key in keys], dtype=np.int64)
    own = [(column, part.column_of[field]) for column, field in enumerate(fields) if field in part.column_of]
    shared = np.array([words.code(cell) for cell in part.cells])
    for column, source in own:
        codes[:, column] = shared[part.codes[rows, source]]
    return codes


def _changed_tags(
    old: PartitionSnapshot, new: PartitionSnapshot, keys: list[str]
) -> dict[str, dict[str, tuple[Any, Any]]]:
    changed = {}
    for key in keys:
        was, now = old.tag_of(key), new.tag_of(key)
        if was != now:
            names = [name for name in {**was, **now} if was.get(name, MISSING) != now.get(name, MISSING)]
            changed[key] = {name: (was.get(name, MISSING), now.get(name, MISSING)) for name in names}
    return changed
