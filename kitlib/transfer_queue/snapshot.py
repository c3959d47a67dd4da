"""QueueSnapshot: one frozen, read-only picture of a queue. Every view and every diagnosis is a function of snapshots.

A snapshot says which keys sit in which partition with which tags, and for every (key, field) whether it is there and
what it looks like: dtype, shape, layout, bytes. It never touches a value. It is independent of the queue: later puts do
not change it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from kitlib.transfer_queue.actors import LastWrite
from kitlib.transfer_queue.cells import Cell
from kitlib.transfer_queue.controller import Controller
from kitlib.transfer_queue.errors import QueueTypeError, QueueValueError


@dataclass(frozen=True)
class PartitionSnapshot:
    """One partition: keys in the order of their first put, and the fields that at least one of them has, in column
    order.

    present[i, j] says whether keys[i] has fields[j]; codes[i, j] is the position of its description in `cells`, 0 if
    absent. consumed: {task: keys that it has been handed}. last_writes: of every key, None where nobody knows; empty if
    the queue does not keep them (then the log of a `watch`ed queue may).
    """

    partition_id: str
    keys: tuple[str, ...]
    tags: tuple[dict[str, Any], ...]
    fields: tuple[str, ...]
    present: np.ndarray  # bool [num_keys, num_fields]
    codes: np.ndarray  # int32 [num_keys, num_fields]
    cells: tuple[Cell, ...]
    consumed: dict[str, frozenset[str]] = field(default_factory=dict)
    last_writes: tuple[LastWrite | None, ...] = ()

    def has(self, key: str, field: str) -> bool:
        """True if the field is there for the key; False also for a field nobody has. QueueValueError for an unknown
        key.
        """
        row = self._row(key)
        return field in self.column_of and bool(self.present[row, self.column_of[field]])

    def fields_of(self, key: str) -> tuple[str, ...]:
        """The fields of one key."""
        row = self.present[self._row(key)]
        return tuple(field for field, is_there in zip(self.fields, row, strict=True) if is_there)

    def tag_of(self, key: str) -> dict[str, Any]:
        """The tag of one key."""
        return self.tags[self._row(key)]

    def last_write(self, key: str) -> LastWrite | None:
        """Who put fields or a tag to the key last, and when; None if unknown."""
        row = self._row(key)
        return self.last_writes[row] if self.last_writes else None

    def cell(self, key: str, field: str) -> Cell | None:
        """What the value looks like, None if it is not there."""
        if not self.has(key, field):
            return None
        return self.cells[self.codes[self._row(key), self.column_of[field]]]

    def __contains__(self, key: str) -> bool:
        return key in self.row_of

    def _row(self, key: str) -> int:
        if key not in self.row_of:
            raise QueueValueError(f"key {key!r} is not in partition {self.partition_id!r} ({len(self.keys)} keys)")
        return self.row_of[key]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """{key: its row in `present`}."""
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def column_of(self) -> dict[str, int]:
        """{field: its column in `present`}."""
        return {field: column for column, field in enumerate(self.fields)}


@dataclass(frozen=True)
class QueueSnapshot:
    """All partitions of a queue at one moment. taken_at: seconds since the epoch."""

    taken_at: float
    partitions: dict[str, PartitionSnapshot]

    def age(self, partition_id: str, key: str) -> float | None:
        """Seconds from the last put to the key until the picture was taken; None if unknown."""
        write = self.partitions[partition_id].last_write(key)
        return None if write is None else self.taken_at - write.at


def take_snapshot(tq: Any, partition_id: str | None = None, keys: Sequence[str] | None = None) -> QueueSnapshot:
    """A picture of any queue that offers `snapshot()`, of all partitions or of one (an unknown one is left out).

    keys: of these keys only; TransferQueue knows how, the package does not.
    """
    snapshot: Callable[..., QueueSnapshot] | None = getattr(tq, "snapshot", None)
    if snapshot is None:
        raise QueueTypeError(f"cannot take a snapshot of {type(tq).__name__}: it has no method `snapshot`")
    return snapshot(partition_id) if keys is None else snapshot(partition_id, keys)


def picture(
    controller: Controller, partition_id: str | None = None, keys: Sequence[str] | None = None
) -> QueueSnapshot:
    """Copy what the controller knows, of all keys or of these as far as they exist; the caller holds the lock."""
    wanted = controller.partitions if partition_id is None else {partition_id} & controller.partitions.keys()
    cells = tuple(controller.cells.cells)
    return QueueSnapshot(time.time(), {name: _partition_picture(controller, name, cells, keys) for name in wanted})


def _partition_picture(
    controller: Controller, partition_id: str, cells: tuple[Cell, ...], keys: Sequence[str] | None
) -> PartitionSnapshot:
    partition = controller.partitions[partition_id]
    indexes = partition.indexes if keys is None else controller.lookup(partition_id, keys)
    rows = np.fromiter(indexes.values(), dtype=np.int64, count=len(indexes))
    codes = controller.codes[rows, : len(controller.columns)]
    present = codes > 0
    used = np.any(present, axis=0)
    if not used.all():
        codes, present = codes[:, used], present[:, used]
    return PartitionSnapshot(
        partition_id=partition_id,
        keys=tuple(indexes),
        tags=tuple(partition.copy_tags(None if keys is None else indexes).values()),
        fields=tuple(field for field, column in controller.columns.items() if used[column]),
        present=present,
        codes=codes,
        cells=cells,
        consumed={task: frozenset(keys) for task, keys in partition.consumed.items()},
        last_writes=tuple(map(partition.last_writes.get, indexes)),
    )
