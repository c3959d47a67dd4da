"""What a cell (one field of one row) looks like: the word list that the controller counts in.

The controller keeps one number a cell, not one object: 0 for "not produced", else the position of its description in a
table. Two rows of equal dtype and shape share a description, so the table stays short (some hundred entries in a
training run) while the matrix of numbers can be copied for a snapshot in one go.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

Layout = Literal["row", "scalar", "object"]


class Cell(NamedTuple):
    """Description of one value in the store, without the value.

    layout "row" is a tensor of at least one dimension, "scalar" a tensor of none, "object" any Python object.
    dtype is "int64", "float32", ... or the name of the Python type. num_bytes of an object is its shallow size.
    """

    dtype: str
    shape: tuple[int, ...]
    layout: Layout
    num_bytes: int


ABSENT = Cell("", (), "object", 0)  # the entry behind the number 0


def tensor_cell(dtype: torch.dtype, shape: tuple[int, ...]) -> Cell:
    """Description of a tensor row of this dtype and shape."""
    num_elements = 1
    for length in shape:
        num_elements *= length
    name = str(dtype).removeprefix("torch.")
    return Cell(name, shape, "row" if shape else "scalar", num_elements * dtype.itemsize)


def cell_of(value: Any) -> Cell:
    """Description of any row value."""
    if isinstance(value, torch.Tensor):
        return tensor_cell(value.dtype, tuple(value.shape))
    num_bytes = value.nbytes if isinstance(value, np.ndarray) else sys.getsizeof(value)
    return Cell(type(value).__name__, (), "object", num_bytes)


class CellTable:
    """Descriptions in the order of their first use; a description keeps its number for the life of the table."""

    def __init__(self) -> None:
        self.cells: list[Cell] = [ABSENT]
        self._codes: dict[Cell, int] = {ABSENT: 0}
        self._tensor_codes: dict[tuple[torch.dtype, tuple[int, ...]], int] = {}  # quicker than by Cell
        self._object_codes: dict[tuple[type, int], int] = {}  # by type and shallow size
        self._num_bytes = np.zeros(1, dtype=np.int64)

    def code(self, cell: Cell) -> int:
        """The number of this description; a new one is added."""
        code = self._codes.get(cell)
        if code is None:
            code = self._codes[cell] = len(self.cells)
            self.cells.append(cell)
        return code

    def tensor_code(self, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
        """The number of a tensor row."""
        code = self._tensor_codes.get((dtype, shape))
        if code is None:
            code = self._tensor_codes[dtype, shape] = self.code(tensor_cell(dtype, tuple(shape)))
        return code

    def object_codes(self, values: Sequence[Any]) -> list[int]:
        """The numbers of row values of any kind."""
        known = self._object_codes
        try:
            return [known[kind] for kind in zip(map(type, values), map(sys.getsizeof, values), strict=True)]
        except KeyError:
            return [self._object_code(value) for value in values]

    def _object_code(self, value: Any) -> int:
        code = self.code(cell_of(value))
        if not isinstance(value, torch.Tensor | np.ndarray):  # of these, type and shallow size do not say enough
            self._object_codes[type(value), sys.getsizeof(value)] = code
        return code

    def num_bytes(self, codes: np.ndarray) -> int:
        """Bytes behind an array of numbers of any shape."""
        if len(self._num_bytes) != len(self.cells):
            self._num_bytes = np.array([cell.num_bytes for cell in self.cells], dtype=np.int64)
        return int(self._num_bytes[codes].sum())
