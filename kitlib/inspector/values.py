"""The few values that a view may read: small reads of named fields, never a whole batch.

verl 0.9.1 has no counterpart. A plain kv_batch_get leaves out a column that one row lacks and leaves out rows that
are gone, both without an error (TransferQueue 0.1.11), so each field is asked for with exactly the keys that have it,
and the answer is used only if it has one row a key. A snapshot holds no values: without a queue there is nothing to
read, and the view says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kitlib.inspector.source import Source
from kitlib.transfer_queue import PartitionSnapshot, QueueSnapshot, acting_as

INSPECTOR = "inspector"  # signs the reads of views, so that a log tells them from those of the run
Column = dict[str, torch.Tensor]  # key -> the tensor of its row


def read_columns(
    source: Source, partition: PartitionSnapshot, keys: Sequence[str], fields: Sequence[str]
) -> tuple[dict[str, Column], str]:
    """The tensors of `fields` on those `keys` that have them, per field and key, and a note ("" if all was read).

    One small get per set of keys: fields that stand on the same keys are read together.
    """
    if not hasattr(source, "kv_batch_get"):
        what = "a snapshot holds" if isinstance(source, QueueSnapshot) else "this source gives"
        return {}, f"{what} no values: pass the queue, or a recording with values, to see rewards and advantages"
    together: dict[tuple[str, ...], list[str]] = {}
    for field in fields:
        having = tuple(key for key in keys if partition.has(key, field))
        if having:
            together.setdefault(having, []).append(field)
    columns: dict[str, Column] = {}
    changed: list[str] = []
    for having, names in together.items():
        read = _read(source, partition.partition_id, list(having), names)
        columns.update(read)
        changed += [name for name in names if name not in read]
    note = f"rows changed while they were read; not shown: {', '.join(changed)}" if changed else ""
    return columns, note


def _read(tq: object, partition_id: str, keys: list[str], fields: list[str]) -> dict[str, Column]:
    """Columns of one get; those that did not come back with one row a key are left out."""
    try:
        with acting_as(stage=INSPECTOR):
            data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=fields)  # type: ignore[attr-defined]
    except ValueError:  # every key was cleared since the snapshot
        return {}
    columns = {}
    for field in fields:
        column = data.get(field, None)
        if column is not None and len(rows := column.unbind()) == len(keys):
            columns[field] = dict(zip(keys, rows, strict=True))
    return columns
