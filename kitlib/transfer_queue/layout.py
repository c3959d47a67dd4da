"""Columns of ragged rows: make them, pad them, measure them.

verl 0.9.1: utils/tensordict_utils.py (list_of_dict_to_tensordict) and workers/utils/padding.py. Left out: the
conversion between padded DataProto batches and nested tensors that only the V0 trainer needs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict

from kitlib.transfer_queue.errors import QueueTypeError, QueueValueError

# torch 2.13 logs a note for authors of tracers at the first nested tensor of a process. It is not about us, and it
# would stand in red in every notebook.
logging.getLogger("torch.fx._symbolic_trace").addFilter(
    lambda record: not record.getMessage().startswith("is_fx_tracing will return true")
)


def jagged(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """A jagged nested tensor [num_rows, j, ...] of rows [length, ...] that differ in their first dimension only."""
    if not rows:
        raise QueueValueError("jagged() needs at least one row")
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def lengths(column: Any) -> torch.Tensor:
    """Row lengths [num_rows] int64 of a jagged or a dense column [num_rows, length, ...]."""
    if not column.is_nested:
        return torch.full((column.shape[0],), column.shape[1], dtype=torch.int64, device=column.device)
    if column.layout == torch.jagged and column.lengths() is None and column.dim() == 2:
        return column.offsets().diff()
    return torch.tensor([row.shape[0] for row in column.unbind()], dtype=torch.int64, device=column.device)


def padded(column: torch.Tensor, length: int | None = None, padding: float = 0) -> torch.Tensor:
    """A dense [num_rows, length, ...] copy, filled up on the right with `padding`.

    column: jagged or dense. length: default is the longest row. Raises QueueValueError if a row is longer than
    `length`: cutting a row is never what the caller meant by padding.
    """
    rows = column.unbind()
    longest = max((row.shape[0] for row in rows), default=0)
    if length is not None and longest > length:
        raise QueueValueError(f"cannot pad to length {length}: the longest row has {longest}")
    width = longest if length is None else length
    out = torch.full((len(rows), width, *rows[0].shape[1:]), padding, dtype=column.dtype, device=column.device)
    for target, row in zip(out, rows, strict=True):
        target[: row.shape[0]] = row
    return out


def list_of_dict_to_tensordict(rows: Sequence[dict[str, Any]]) -> TensorDict:
    """Turn rows {field: value} into columns: TensorDict of batch size [num_rows].

    Tensors of one shape become a dense stack, of several shapes a jagged nested tensor, everything else a
    NonTensorStack. Raises QueueValueError if there are no rows or if they differ in their fields (verl would silently
    take the fields of the first row only).
    """
    if not rows:
        raise QueueValueError("list_of_dict_to_tensordict() needs at least one row")
    for position, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            differing = sorted(row.keys() ^ rows[0].keys())
            raise QueueValueError(
                f"row {position} and row 0 differ in the fields {differing}: a column needs every row"
            )
    columns = {field: _column(field, [row[field] for row in rows]) for field in rows[0]}
    return TensorDict(columns, batch_size=[len(rows)])


def _column(field: str, values: list[Any]) -> torch.Tensor | NonTensorStack:
    if not all(isinstance(value, torch.Tensor) for value in values):
        return NonTensorStack(*values)
    try:
        if all(value.shape == values[0].shape for value in values):
            return torch.stack(values)
        return jagged(values)
    except (RuntimeError, TypeError) as error:
        shapes = sorted({tuple(value.shape) for value in values})
        raise QueueTypeError(f"field {field!r}: rows of shapes {shapes} do not form one column: {error}") from error
