"""A block is one column of one put, as the store keeps it: a private copy, made once, never changed afterwards.

A cell of the store points to a block and a row in it, so a put of 128 rows makes one object a field, not 128. A get
that asks for rows of one block cuts them out in one go; a get across several puts goes row by row. The block is freed
when the last of its rows is cleared or overwritten.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorStack

from kitlib.transfer_queue.cells import CellTable
from kitlib.transfer_queue.values import copy_value


class Block(ABC):
    """The rows of one field from one put. `rows` says which global index is which row; all fields of a put share it."""

    rows: dict[int, int]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def row(self, number: int) -> Any:
        """One row; a tensor row is a view."""

    @abstractmethod
    def codes(self, table: CellTable) -> int | list[int]:
        """The number of the description of every row; one number if all rows look the same."""

    def join(self, numbers: Sequence[int]) -> torch.Tensor | NonTensorStack:
        """A column of these rows, in this order, that shares nothing with the store."""
        return join_values([self.row(number) for number in numbers])


class DenseBlock(Block):
    """Rows of one shape: values [num_rows, *row shape]."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return self.values.shape[0]

    def row(self, number: int) -> torch.Tensor:
        return self.values[number]

    def codes(self, table: CellTable) -> int | list[int]:
        return table.tensor_code(self.values.dtype, self.values.shape[1:])

    def join(self, numbers: Sequence[int]) -> torch.Tensor | NonTensorStack:
        chosen = _take(self.values, numbers)
        if chosen.dim() == 1:
            return chosen
        num_rows, length = chosen.shape[:2]
        offsets = torch.arange(num_rows + 1) * length
        return _jagged(chosen.flatten(0, 1), offsets, length, length)


class RowBlock(Block):
    """One tensor row, as a kv_put of a dict brings it: value [*row shape]."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def __len__(self) -> int:
        return 1

    def row(self, number: int) -> torch.Tensor:
        return self.value

    def codes(self, table: CellTable) -> int | list[int]:
        return table.tensor_code(self.value.dtype, self.value.shape)


class JaggedBlock(Block):
    """One-dimensional rows of several lengths, one behind the other: values [sum of lengths]."""

    def __init__(self, values: torch.Tensor, offsets: list[int]) -> None:
        self.values = values
        self.offsets = offsets  # row i is values[offsets[i] : offsets[i + 1]]
        self.lengths = list(map(operator.sub, offsets[1:], offsets))

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, number: int) -> torch.Tensor:
        return self.values[self.offsets[number] : self.offsets[number + 1]]

    def codes(self, table: CellTable) -> int | list[int]:
        known = {length: table.tensor_code(self.values.dtype, (length,)) for length in set(self.lengths)}
        return [known[length] for length in self.lengths]

    def join(self, numbers: Sequence[int]) -> torch.Tensor | NonTensorStack:
        if list(numbers) != list(range(len(self))):
            return super().join(numbers)
        return _jagged(self.values.clone(), torch.tensor(self.offsets), min(self.lengths), max(self.lengths))


class ListBlock(Block):
    """Rows that are Python objects, or tensors that do not fit one of the other blocks."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def row(self, number: int) -> Any:
        return self.values[number]

    def codes(self, table: CellTable) -> int | list[int]:
        return table.object_codes(self.values)


def join_rows(blocks: Sequence[Block], numbers: Sequence[int]) -> torch.Tensor | NonTensorStack:
    """A column of the rows numbers[i] of blocks[i]; nothing of it is shared with the store."""
    if all(block is blocks[0] for block in blocks):
        return blocks[0].join(numbers)
    return join_values([block.row(number) for block, number in zip(blocks, numbers, strict=True)])


def join_values(values: list[Any]) -> torch.Tensor | NonTensorStack:
    """A column of these row values, as columns.py says what comes back as what."""
    if not all(isinstance(value, torch.Tensor) for value in values):
        return NonTensorStack(*[copy_value(value) for value in values])
    if all(value.dim() == 0 for value in values):
        return torch.stack(values)
    for layout in (torch.jagged, torch.strided):
        try:
            return torch.nested.as_nested_tensor(values, layout=layout)
        except (RuntimeError, TypeError):
            continue  # rows differ in dtype, in rank or in two dimensions: the next layout asks for less
    return NonTensorStack(*[value.clone() for value in values])


def _take(values: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor:
    if list(numbers) == list(range(values.shape[0])):
        return values.clone()
    return values[torch.tensor(numbers)]


def _jagged(values: torch.Tensor, offsets: torch.Tensor, shortest: int, longest: int) -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=shortest, max_seqlen=longest)
