"""What the browser holds of one partition, and how a new picture differs from it.

verl 0.9.1 has no counterpart. The grid keeps the rows in the order of the queue (first put first). In a new picture
some rows are gone, some are new at the end, some cells came or were written again; that is a `Change`. A picture that
does not follow from the last one in this way (another order, a new field) makes the grid start over.

    kind of a row   0 trajectory   1 padding row   2 prompt marker   3 stray (kitlib.inspector.selection)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kitlib.inspector.render.printable import name_of, printable
from kitlib.inspector.selection import kind_of
from kitlib.inspector.tags import status_of
from kitlib.inspector.widgets.wire import Change
from kitlib.transfer_queue import PartitionSnapshot

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
        self.keys: tuple[str, ...] = ()
        self.tags: Sequence[dict[str, Any]] = ()
        self.names: list[str] = []
        self.fields: list[str] = []
        self.words: list[str] = []
        self.codes = np.zeros((0, 0), dtype=np.int32)
        self.marks = np.zeros((2, 0), dtype=np.uint8)
        self._odd_names: dict[str, str] = {}  # shown name -> key, where they differ

    def update(self, part: PartitionSnapshot | None) -> Change | None:
        """Take in a newer picture of the partition (None: it does not exist). Returns what changed; None if the grid
        started over and has to be sent whole."""
        moves = None if part is None or not set(part.fields) <= set(self.fields) else _moves(self.keys, part.keys)
        if part is None or moves is None:
            is_same = part is None and not self.keys
            self._take(part)
            return Change.nothing() if is_same else None
        removed, num_old = moves
        if len(removed):
            self._remove(removed)
        old_codes, old_marks, codes = self.codes, self.marks, self._ordered(part)
        is_new = old_codes != codes[:num_old]
        touched = np.flatnonzero(is_new.any(axis=1)) if is_new.any() else np.empty(0, dtype=np.int64)
        retagged = [
            i for i, (old, new) in enumerate(zip(self.tags, part.tags, strict=False)) if old is not new and old != new
        ]
        marks = np.zeros((2, len(part.keys)), dtype=np.uint8)
        marks[:, :num_old] = old_marks
        again = np.union1d(touched, np.array(retagged, dtype=np.int64))
        fresh = np.arange(num_old, len(part.keys))
        for rows in (again, fresh):
            marks[:, rows] = self._marks(part, codes, rows.tolist())
        self.keys, self.tags, self.codes, self.marks = part.keys, part.tags, codes, marks
        self.names += list(map(self._name, part.keys[num_old:]))
        remarked = np.flatnonzero((marks[:, :num_old] != old_marks).any(axis=0))
        cells = np.flatnonzero(is_new)
        return Change(
            removed=removed,
            cells=cells,
            values=(codes[:num_old].reshape(-1)[cells] > 0),
            rows=remarked,
            marks=marks[:, remarked],
            added_names=self.names[num_old:],
            added_marks=marks[:, num_old:],
            added_cells=codes[num_old:] > 0,
        )

    def key_of(self, name: str) -> str | None:
        """The stored key behind a shown name; None if the row is gone."""
        key = self._odd_names.get(name, name)
        return key if key in set(self.keys) else None

    # -- starting over ------------------------------------------------------------------------------------------------

    def _take(self, part: PartitionSnapshot | None) -> None:
        """Forget the rows and take those of the picture; fields that were known keep their columns."""
        self._odd_names = {}
        self.keys, self.tags = ((), ()) if part is None else (part.keys, part.tags)
        if part is not None:
            self.fields += [field for field in part.fields if field not in self.fields]
        self.codes = np.zeros((0, len(self.fields)), dtype=np.int32) if part is None else self._ordered(part)
        every = range(len(self.keys))
        self.marks = np.zeros((2, 0), dtype=np.uint8) if part is None else self._marks(part, self.codes, every)
        self.names = list(map(self._name, self.keys))

    def _ordered(self, part: PartitionSnapshot) -> np.ndarray:
        """The codes of a picture under this grid's columns."""
        if list(part.fields) == self.fields:
            return part.codes
        codes = np.zeros((len(part.keys), len(self.fields)), dtype=np.int32)  # [num_rows, num_fields]
        codes[:, [self.fields.index(field) for field in part.fields]] = part.codes
        return codes

    def _remove(self, removed: np.ndarray) -> None:
        keep = np.ones(len(self.keys), dtype=bool)
        keep[removed] = False
        positions = np.flatnonzero(keep).tolist()
        self.keys = tuple(self.keys[i] for i in positions)
        self.tags = tuple(self.tags[i] for i in positions)
        self.names = [self.names[i] for i in positions]
        self.codes, self.marks = self.codes[keep], self.marks[:, keep]

    # -- how a row is shown -------------------------------------------------------------------------------------------

    def _marks(self, part: PartitionSnapshot, codes: np.ndarray, rows: Sequence[int]) -> np.ndarray:
        """Kind and status of some rows: uint8 [2, num_rows]."""
        counts: np.ndarray = (codes[list(rows)] > 0).sum(axis=1)  # [num_rows]
        has_field = (counts > 0).tolist()
        kinds = [_kind(part.keys[i], part.tags[i], there) for i, there in zip(rows, has_field, strict=True)]
        statuses = [self._word(status_of(part.tags[i])) for i in rows]
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


def _moves(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[np.ndarray, int] | None:
    """(positions of the rows that are gone, how many stay), if the new keys are the old ones without some and with
    others at the end; else None."""
    nothing = np.empty(0, dtype=np.int64)
    if old == new[: len(old)]:
        return nothing, len(old)
    there = set(new)
    removed = [i for i, key in enumerate(old) if key not in there]
    num_old = len(old) - len(removed)
    gone = set(removed)
    if new[:num_old] != tuple(key for i, key in enumerate(old) if i not in gone):
        return None
    return np.array(removed, dtype=np.int64), num_old
