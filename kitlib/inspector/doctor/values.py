"""The few values that a rule may read: named fields of named rows, never a whole batch.

verl 0.9.1 has no counterpart. A plain get drops a column that one row lacks, so every field is asked for with exactly
the keys that have it. Tensors arrive as numpy arrays (the rules do no mathematics that needs more), objects as they
are. A rule that reads values says so (kitlib.inspector.doctor.rules) and can be switched off.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from kitlib.transfer_queue import Cell, QueueError


class Values(Protocol):
    """Reads one field of some rows of a partition."""

    def read(self, partition_id: str, field: str, keys: Sequence[str]) -> dict[str, Any]:
        """{key: value}; keys whose value cannot be read are left out."""


class KeptValues:
    """Values that came with a picture: {partition: {key: {field: value}}}."""

    def __init__(self, kept: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        self._kept = kept

    def read(self, partition_id: str, field: str, keys: Sequence[str]) -> dict[str, Any]:
        rows = self._kept.get(partition_id, {})
        return {key: rows[key][field] for key in keys if field in rows.get(key, {})}


NO_VALUES = KeptValues({})


class QueueValues:
    """Values of a queue, one small get a field; what was read is kept for the other rules of one examination."""

    def __init__(self, tq: Any) -> None:
        self._tq = tq
        self._read: dict[tuple[str, str], dict[str, Any]] = {}

    def read(self, partition_id: str, field: str, keys: Sequence[str]) -> dict[str, Any]:
        known = self._read.setdefault((partition_id, field), {})
        new = [key for key in keys if key not in known]
        if new:
            known.update(self._get(partition_id, field, new))
        return {key: known[key] for key in keys if key in known}

    def _get(self, partition_id: str, field: str, keys: list[str]) -> dict[str, Any]:
        try:
            data = self._tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=[field])
        except (QueueError, ValueError, KeyError, RuntimeError):  # cleared since the picture, or not readable at all
            return {}
        column = data.get(field, None)
        rows = [] if column is None else rows_of(column)
        return dict(zip(keys, rows, strict=True)) if len(rows) == len(keys) else {}


def rows_of(column: Any) -> list[Any]:
    """The rows of a column: numpy arrays of a tensor, plain objects of anything else."""
    if isinstance(column, torch.Tensor):
        return [plain(row) for row in column.unbind()]
    return [plain(value) for value in (column.tolist() if hasattr(column, "tolist") else column)]


def cell_of(value: Any) -> Cell:
    """The description of a value, as a snapshot has it."""
    if isinstance(value, np.ndarray):
        return Cell(str(value.dtype), value.shape, "row" if value.shape else "scalar", value.nbytes)
    return Cell(type(value).__name__, (), "object", sys.getsizeof(value))


def is_array(value: Any) -> bool:
    """True for a row that was a tensor."""
    return isinstance(value, np.ndarray) and value.dtype != object


def plain(value: Any) -> Any:
    """A tensor as a numpy array (bfloat16 as float32); anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
