"""What the browser holds of one partition, and how a new picture differs from it.

verl 0.9.1 has no counterpart. The grid keeps the rows in the order of the queue (first put first). In a new picture
some rows are gone, some are new at the end, some cells came or were written again; that is a `Change`. A picture that
does not follow from the last one in this way (another order, a new field) makes the grid start over.

    kind of a row   0 trajectory   1 padding row   2 prompt marker   3 stray (kitlib.inspector.selection)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kitlib.inspector.render.printable import name_of, printable
from kitlib.inspector.selection import kind_of
from kitlib.inspector.tags import status_of
from kitlib.inspector.widgets.wire import Change
from kitlib.transfer_queue import Cell, PartitionSnapshot

KINDS = ("row", "padding", "marker", "stray")
MAX_WORDS = 255  # distinct statuses; a run has five, and a status is one byte on the wire
OTHER_WORD = "(other)"


class Grid:
    """The rows of one partition as the browser has them.

    keys, names: of the rows, as stored and as shown. fields: in the order of their columns. codes: int32 [num_rows,
    num_fields], as in PartitionSnapshot but in this order of fields. marks: uint8 [2, num_rows], kind and status.
    words: the statuses by number.
    """

    def __init__(self, partition_id: str) -> None:
        self.partition_id = partition_id
        self.keys: list[str] = []
        self.names: list[str] = []
        self.tags: list[dict[str, Any]] = []
        self.fields: list[str] = []
        self.words: list[str] = []
        self.codes = np.zeros((0, 0), dtype=np.int32)
        self.marks = np.zeros((2, 0), dtype=np.uint8)
        self._cells: tuple[Cell, ...] = ()
        self._row_of: dict[str, int] = {}
        self._odd_names: dict[str, str] = {}  # shown name -> key, where they differ

    def update(self, part: PartitionSnapshot | None) -> Change | None:
        """Take in a newer picture of the whole partition (None: it does not exist). Returns what changed; None if the
        grid started over and has to be sent whole."""
        if part is None:
            is_empty = not self.keys
            self._start_over(None)
            return Change.nothing() if is_empty else None
        removed = self._gone(part)
        if removed is None or not set(part.fields) <= set(self.fields):
            self._start_over(part)
            return None
        self._remove(removed)
        num_old, codes = len(self.keys), self._ordered(part)
        is_new = self.codes != codes[:num_old]
        touched = np.flatnonzero(is_new.any(axis=1)) if is_new.any() else np.empty(0, dtype=np.int64)
        pairs = enumerate(zip(self.tags, part.tags, strict=False))
        retagged = [i for i, (old, new) in pairs if old is not new and old != new]
        rows = np.union1d(touched, np.array(retagged, dtype=np.int64))
        return self._write(removed, rows, rows, np.arange(num_old, len(part.keys)), part, codes)

    def patch(self, cleared: Iterable[str], part: PartitionSnapshot | None) -> Change | None:
        """Take in what a change feed told: keys that were cleared, and a picture of those that were written since.

        Returns as `update`; None also means that nothing was taken in and the whole partition is needed.
        """
        if part is None or not set(part.fields) <= set(self.fields):
            return None
        removed = np.array(sorted(self._row_of[key] for key in cleared if key in self._row_of), dtype=np.int64)
        self._remove(removed)
        known = [(i, self._row_of[key]) for i, key in enumerate(part.keys) if key in self._row_of]
        at, rows = np.array(known, dtype=np.int64).reshape(-1, 2).T
        fresh = np.array([i for i, key in enumerate(part.keys) if key not in self._row_of], dtype=np.int64)
        return self._write(removed, rows, at, fresh, part, self._ordered(part))

    def picture(self) -> PartitionSnapshot:
        """What the grid holds as a snapshot of the partition, without what tasks consumed."""
        used = np.flatnonzero(np.any(self.codes > 0, axis=0))
        fields, codes = tuple(self.fields[j] for j in used), self.codes[:, used]
        return PartitionSnapshot(
            self.partition_id, tuple(self.keys), tuple(self.tags), fields, codes > 0, codes, self._cells
        )

    def key_of(self, name: str) -> str | None:
        """The stored key behind a shown name; None if the row is gone."""
        key = self._odd_names.get(name, name)
        return key if key in self._row_of else None

    # -- taking in ----------------------------------------------------------------------------------------------------

    def _start_over(self, part: PartitionSnapshot | None) -> None:
        """Forget the rows and take those of the picture; fields that were known keep their columns."""
        self.keys, self.tags, self.names, self._row_of, self._odd_names = [], [], [], {}, {}
        self.fields += [] if part is None else [field for field in part.fields if field not in self.fields]
        self.codes = np.zeros((0, len(self.fields)), dtype=np.int32)
        self.marks = np.zeros((2, 0), dtype=np.uint8)
        if part is not None:
            none = np.empty(0, dtype=np.int64)
            self._write(none, none, none, np.arange(len(part.keys)), part, self._ordered(part))

    def _gone(self, part: PartitionSnapshot) -> np.ndarray | None:
        """Rows that the picture no longer has; None if its keys are not the old ones without these, then new ones."""
        if tuple(self.keys) == part.keys[: len(self.keys)]:
            return np.empty(0, dtype=np.int64)
        there = part.row_of
        removed = [i for i, key in enumerate(self.keys) if key not in there]
        stay = tuple(key for key in self.keys if key in there)
        return np.array(removed, dtype=np.int64) if stay == part.keys[: len(stay)] else None

    def _ordered(self, part: PartitionSnapshot) -> np.ndarray:
        """A copy of the picture's codes under this grid's columns."""
        codes = np.zeros((len(part.keys), len(self.fields)), dtype=np.int32)  # [num_rows, num_fields]
        codes[:, [self.fields.index(field) for field in part.fields]] = part.codes
        return codes

    def _remove(self, removed: np.ndarray) -> None:
        if not len(removed):
            return
        keep = np.ones(len(self.keys), dtype=bool)
        keep[removed] = False
        positions = np.flatnonzero(keep).tolist()
        for rows in (self.keys, self.tags, self.names):
            rows[:] = [rows[i] for i in positions]
        self.codes, self.marks = self.codes[keep], self.marks[:, keep]
        self._row_of = {key: row for row, key in enumerate(self.keys)}

    def _write(
        self,
        removed: np.ndarray,
        rows: np.ndarray,
        at: np.ndarray,
        fresh: np.ndarray,
        part: PartitionSnapshot,
        codes: np.ndarray,
    ) -> Change:
        """Overwrite `rows` with the positions `at` of the picture, append its positions `fresh`."""
        self._cells = part.cells
        num_old, num_fields = len(self.keys), len(self.fields)
        changed, column = np.nonzero(self.codes[rows] != codes[at])
        cells = rows[changed] * num_fields + column
        marks = self._marks(part, codes, at)
        remarked = np.flatnonzero((marks != self.marks[:, rows]).any(axis=0))
        self.codes[rows], self.marks[:, rows] = codes[at], marks
        for row, i in zip(rows.tolist(), at.tolist(), strict=True):
            self.tags[row] = part.tags[i]
        added_keys = [part.keys[i] for i in fresh.tolist()]
        self.keys += added_keys
        self.tags += [part.tags[i] for i in fresh.tolist()]
        self.names += map(self._name, added_keys)
        self._row_of.update(zip(added_keys, range(num_old, len(self.keys)), strict=True))
        added_marks = self._marks(part, codes, fresh)
        if len(fresh):
            self.codes = np.concatenate([self.codes, codes[fresh]])
            self.marks = np.concatenate([self.marks, added_marks], axis=1)
        return Change(
            removed=removed,
            cells=cells,
            values=codes[at][changed, column] > 0,
            rows=rows[remarked],
            marks=marks[:, remarked],
            added_names=self.names[num_old:],
            added_marks=added_marks,
            added_cells=codes[fresh] > 0,
        )

    # -- how a row is shown -------------------------------------------------------------------------------------------

    def _marks(self, part: PartitionSnapshot, codes: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Kind and status of some positions of a picture: uint8 [2, num_rows]."""
        counts: np.ndarray = (codes[at] > 0).sum(axis=1)  # [num_rows]
        has_field, positions = (counts > 0).tolist(), at.tolist()
        kinds = [_kind(part.keys[i], part.tags[i], there) for i, there in zip(positions, has_field, strict=True)]
        statuses = [self._word(status_of(part.tags[i])) for i in positions]
        return np.array([kinds, statuses], dtype=np.uint8).reshape(2, len(kinds))

    def _word(self, status: str) -> int:
        word = status if status in self.words or len(self.words) < MAX_WORDS - 1 else OTHER_WORD
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def _name(self, key: str) -> str:
        name = printable(name_of(key))
        if name != key:
            self._odd_names[name] = key
        return name


def _kind(key: str, tag: dict[str, Any], has_field: bool) -> int:
    kind = kind_of(key, tag, has_field)
    return KINDS.index("padding" if kind == "row" and tag.get("is_padding") else kind)
