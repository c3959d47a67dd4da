"""How a put takes the columns of a TensorDict into the store, and what a get makes of them.

    stored as                                              comes back as
    tensors of >= 1 dim a row, dense or nested             jagged nested tensor, also if all rows have equal length
    0-dim tensor a row                                     dense vector [num_rows]
    rows of several dtypes or varying in two dimensions    strided nested tensor
    rows of different rank, tensors beside None            NonTensorStack
    any Python object a row                                NonTensorStack

The same in the TransferQueue package 0.1.11: storage/managers/simple_storage_manager.py,
AsyncSimpleStorageManager.put_data and _pack_field_values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase

from kitlib.transfer_queue.blocks import Block, DenseBlock, JaggedBlock, ListBlock
from kitlib.transfer_queue.cells import Cell, cell_of, tensor_cell
from kitlib.transfer_queue.errors import QueueTypeError, QueueValueError
from kitlib.transfer_queue.values import ATOMS, stored_value


def split_fields(fields: TensorDictBase) -> dict[str, Block]:
    """Every field of a batch as a block of `fields.batch_size[0]` rows."""
    num_rows = fields.batch_size[0]
    return {name: to_block(name, column, num_rows) for name, column in fields.items()}


def to_block(field: str, column: Any, num_rows: int) -> Block:
    """Copy a column into a block.

    column: tensor [num_rows, ...], nested tensor, NonTensorStack or a list. Raises QueueTypeError for one value that
    stands for the whole batch (NonTensorData) and for a nested TensorDict, QueueValueError if the number of rows is
    wrong.
    """
    values = _row_values(field, column)
    try:
        block = _block(values)
    except QueueTypeError as error:
        raise QueueTypeError(f"field {field!r}: {error}") from error
    if len(block) != num_rows:
        raise QueueValueError(f"field {field!r} has {len(block)} rows, the batch has {num_rows}")
    return block


def _block(column: Any) -> Block:
    if isinstance(column, list):
        if ATOMS.issuperset(map(type, column)):
            return ListBlock(column)
        return ListBlock([own_copy(v) if isinstance(v, torch.Tensor) else stored_value(v) for v in column])
    if (flat := flat_jagged(column)) is not None:
        return JaggedBlock(own_copy(flat), column.offsets().tolist())
    if column.is_nested:
        return ListBlock(list(own_copy(column).unbind()))
    return DenseBlock(own_copy(column))


def describe_fields(fields: TensorDictBase | dict[str, Any]) -> dict[str, list[Cell]]:
    """What every row of every field looks like, without a copy. A dict is one row, as in kv_put."""
    if isinstance(fields, dict):
        return {name: [cell_of(value)] for name, value in fields.items()}
    return {name: _describe(_row_values(name, column)) for name, column in fields.items()}


def _describe(column: Any) -> list[Cell]:
    if isinstance(column, list):
        return [cell_of(value) for value in column]
    if (flat := flat_jagged(column)) is not None:
        lengths = column.offsets().diff().tolist()
        known = {length: tensor_cell(flat.dtype, (length,)) for length in set(lengths)}
        return [known[length] for length in lengths]
    if column.is_nested:
        return [cell_of(row) for row in column.unbind()]
    return [tensor_cell(column.dtype, tuple(column.shape[1:]))] * column.shape[0]


def _row_values(field: str, column: Any) -> torch.Tensor | list[Any]:
    if isinstance(column, list) or isinstance(column, torch.Tensor):  # noqa: SIM101 (in this order it is quick)
        return column
    if isinstance(column, NonTensorStack):
        return column.tolist()
    if isinstance(column, NonTensorData):
        if isinstance(column.data, list | np.ndarray):
            return list(column.data)
        raise QueueTypeError(
            f"field {field!r} is NonTensorData: one value ({column.data!r:.60}) for the whole batch, and the "
            "queue stores a value for every row; put it into KVBatchMeta.extra_info or repeat it with NonTensorStack"
        )
    raise QueueTypeError(f"field {field!r} is a {type(column).__name__}, not a tensor or a list")


def flat_jagged(column: Any) -> torch.Tensor | None:
    """The values of one-dimensional rows that lie one behind the other: the usual nested column, and the quick case.

    Looks at the attribute behind `values()`: that call and the question `is_nested` take longer than the copy of a
    small column.
    """
    values = getattr(column, "_values", None)
    if not isinstance(values, torch.Tensor) or values.dim() != 1 or column.lengths() is not None:
        return None
    return values


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU that shares nothing with the caller, neither memory nor a graph."""
    detached = tensor.detach() if tensor.requires_grad else tensor
    return detached.clone() if detached.is_cpu else detached.cpu()
