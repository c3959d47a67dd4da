"""A change of the grid as one message: a list of binary buffers, in this order.

    removed       uint32  rows to take out, positions before this message
    cells         uint32  cells written: row * num_fields + column, positions after the removal
    values        uint8   of these cells: 1 there, 0 not there
    rows          uint32  rows whose kind or status changed
    marks         uint8   kinds of these rows, then their statuses
    added_names   utf-8   names of the rows to append, one a line
    added_marks   uint8   their kinds, then their statuses
    added_cells   uint8   their cells, row by row

The browser applies them in this order. static/data.js is the other end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Change:
    """See the module; positions are int arrays, marks are uint8 [2, n], cells are bool."""

    removed: np.ndarray
    cells: np.ndarray
    values: np.ndarray
    rows: np.ndarray
    marks: np.ndarray
    added_names: Sequence[str]
    added_marks: np.ndarray
    added_cells: np.ndarray

    @classmethod
    def nothing(cls) -> Change:
        """No change."""
        none, no_marks = np.empty(0, dtype=np.int64), np.empty((2, 0), dtype=np.uint8)
        return cls(none, none, none, none, no_marks, (), no_marks, none)

    def __bool__(self) -> bool:
        return bool(len(self.removed) or len(self.cells) or len(self.rows) or len(self.added_names))

    def buffers(self) -> list[bytes]:
        """The bytes, little-endian."""
        return [
            self.removed.astype("<u4").tobytes(),
            self.cells.astype("<u4").tobytes(),
            self.values.astype(np.uint8).tobytes(),
            self.rows.astype("<u4").tobytes(),
            self.marks.tobytes(),
            names_blob(self.added_names),
            self.added_marks.tobytes(),
            self.added_cells.astype(np.uint8).tobytes(),
        ]


def names_blob(names: Sequence[str]) -> bytes:
    """Names one a line; they are printable, so none holds a line break."""
    return "\n".join(names).encode()
