"""The one adapter to the insides of the package: its controller's status of a partition becomes a PartitionSnapshot.

TransferQueue 0.1.11: controller.py, TransferQueueController.get_partition_snapshot and DataPartitionStatus, internal
there. All that is known about them is in this file. What differs from a snapshot of the in-process queue: a scalar
cell shows as a row of shape (1,), an object has no type name and no size, and a field that workers wrote in several
shapes may show the first.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from kitlib.transfer_queue.cells import Cell, CellTable, tensor_cell
from kitlib.transfer_queue.errors import QueueRuntimeError
from kitlib.transfer_queue.snapshot import PartitionSnapshot, QueueSnapshot

WRITTEN_FOR = "0.1.11"
ATTRIBUTES = (
    "keys_mapping",
    "field_name_mapping",
    "production_status",
    "custom_meta",
    "field_metadata",
    "consumption_status",
)
ATTEMPTS = 5  # the controller copies while its other thread writes; the copy then fails and is asked for again
OBJECT = Cell("object", (), "object", 0)


def snapshot_of_controller(controller: Any, partition_id: str | None = None) -> QueueSnapshot:
    """Ask the controller actor for its partitions. Raises QueueRuntimeError if the run has ended or speaks another
    version."""
    names = _ask(controller.list_partitions)
    if partition_id is not None:
        names = [name for name in names if name == partition_id]
    statuses = {name: _ask(controller.get_partition_snapshot, name) for name in names}
    pictures = {name: partition_of_status(status) for name, status in statuses.items() if status is not None}
    return QueueSnapshot(time.time(), pictures)


def partition_of_status(status: Any) -> PartitionSnapshot:
    """Translate a DataPartitionStatus. Raises QueueRuntimeError naming what another version of the package lacks."""
    missing = [name for name in ATTRIBUTES if not hasattr(status, name)]
    if missing:
        raise QueueRuntimeError(
            f"the controller's status has no {', '.join(missing)}: this adapter was written for TransferQueue "
            f"{WRITTEN_FOR}; install that version on both sides"
        )
    indexes = np.fromiter(status.keys_mapping.values(), dtype=np.int64, count=len(status.keys_mapping))
    produced = np.asarray(status.production_status) == 1
    table, columns, fields = CellTable(), [], []
    for field, column in status.field_name_mapping.items():
        if column >= produced.shape[1] or not produced[indexes, column].any():
            continue
        fields.append(field)
        columns.append(_codes(status.field_metadata.get(field), indexes, produced[indexes, column], table))
    codes = np.stack(columns, axis=1) if columns else np.zeros((len(indexes), 0), dtype=np.int32)
    return PartitionSnapshot(
        partition_id=status.partition_id,
        keys=tuple(status.keys_mapping),
        tags=tuple(dict(status.custom_meta.get(index, {})) for index in status.keys_mapping.values()),
        fields=tuple(fields),
        present=codes > 0,
        codes=codes,
        cells=tuple(table.cells),
        consumed={task: _consumed(marks, status.keys_mapping) for task, marks in status.consumption_status.items()},
    )


def _codes(meta: Any, indexes: np.ndarray, produced: np.ndarray, table: CellTable) -> np.ndarray:
    """int32 [num_keys]: the description of every row that is there. meta: the package's FieldMeta, None if it has
    lost it."""
    if meta is None or meta.is_non_tensor or meta.dtype is None:
        return np.where(produced, table.code(OBJECT), 0).astype(np.int32)
    shapes = meta.per_sample_shapes if meta.is_nested else {}
    usual = table.code(tensor_cell(meta.dtype, tuple(meta.shape))) if meta.shape is not None else table.code(OBJECT)
    own = {index: table.code(tensor_cell(meta.dtype, tuple(shape))) for index, shape in shapes.items()}
    codes = np.array([own.get(index, usual) for index in indexes.tolist()], dtype=np.int32)
    return np.where(produced, codes, 0).astype(np.int32)


def _consumed(marks: Any, keys_mapping: dict[str, int]) -> frozenset[str]:
    return frozenset(key for key, index in keys_mapping.items() if index < len(marks) and marks[index])


def _ask(method: Any, *arguments: Any) -> Any:
    import ray

    for attempt in range(ATTEMPTS):
        try:
            return ray.get(method.remote(*arguments))
        except ray.exceptions.RayActorError as error:
            raise QueueRuntimeError(f"the controller is gone: the run has ended ({error})") from error
        except RuntimeError as error:
            if "changed size during iteration" not in str(error) or attempt == ATTEMPTS - 1:
                raise
        except TypeError as error:
            raise QueueRuntimeError(
                f"the controller's answer cannot be read here; TransferQueue {WRITTEN_FOR} with its dependencies must "
                f"be importable in this environment too ({error})"
            ) from error
    raise AssertionError("the last attempt returns or raises")
