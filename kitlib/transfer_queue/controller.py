"""The control plane: which keys exist, which of their fields have been produced, what their tags are. Never a value.

TransferQueue 0.1.11: controller.py, TransferQueueController, PartitionIndexManager and DataPartitionStatus.

    partition "train"            matrix: one row an index, one column a field
      key         index  tag        prompts  responses  rm_scores     0 = not produced,
      u1            0    {...}         0         0          0         else the number of a
      u1_0_0        2    {...}        11        17          9         description in `cells`
      u1_1_0        3    {...}        11        21          0

Indexes and columns are shared by all partitions: an index names a row of the storage units, whoever owns it. A cleared
index is used again. That is safe because it goes back to the free list only in the same locked step that zeroes its row
here and drops its values there, so a recycled index can show neither an old status nor an old value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kitlib.transfer_queue.actors import LastWrite
from kitlib.transfer_queue.blocks import Block
from kitlib.transfer_queue.cells import CellTable
from kitlib.transfer_queue.errors import QueueFullError
from kitlib.transfer_queue.values import copy_value, is_flat


@dataclass
class Partition:
    """Keys in the order of their first put, each with its index and its tag."""

    indexes: dict[str, int] = field(default_factory=dict)
    tags: dict[str, dict[str, Any]] = field(default_factory=dict)
    consumed: dict[str, set[str]] = field(default_factory=dict)  # task -> keys that it was handed
    last_writes: dict[str, LastWrite] = field(default_factory=dict)  # unknown for what a checkpoint brought
    deep_tags: set[str] = field(default_factory=set)  # keys whose tag holds a container: a copy has to go deeper

    def copy_tags(self, keys: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """{key: independent copy of its tag} of these keys, or of all in their order."""
        tags = self.tags if keys is None else {key: self.tags[key] for key in keys}
        if not self.deep_tags:
            return {key: tag.copy() for key, tag in tags.items()}
        return {key: copy_value(tag) if key in self.deep_tags else tag.copy() for key, tag in tags.items()}


class Controller:
    """Everything about rows but their values. Not thread-safe: TransferQueue holds its lock around every call."""

    def __init__(self) -> None:
        self.partitions: dict[str, Partition] = {}
        self.cells = CellTable()
        self.columns: dict[str, int] = {}  # field -> column of the matrix; grows, is never emptied
        self.codes = np.zeros((64, 16), dtype=np.int32)  # [rows, columns], both with room to grow
        self.num_filled = 0  # rows with at least one field
        self.num_bytes = 0
        self._free: deque[int] = deque()
        self._next_index = 0

    # -- keys ---------------------------------------------------------------------------------------------------------

    def register(self, partition_id: str, keys: Sequence[str]) -> tuple[list[int], bool]:
        """Indexes of the keys, and whether one of them (or the partition) is new. A new key has an empty tag and no
        field.
        """
        is_new = partition_id not in self.partitions
        partition = self.partitions.setdefault(partition_id, Partition())
        indexes = []
        for key in keys:
            index = partition.indexes.get(key)
            if index is None:
                index = partition.indexes[key] = self._take_index()
                partition.tags[key] = {}
                is_new = True
            indexes.append(index)
        return indexes, is_new

    def sign(self, partition_id: str, keys: Sequence[str], write: LastWrite) -> None:
        """Remember who wrote to these keys last."""
        self.partitions[partition_id].last_writes.update(dict.fromkeys(keys, write))

    def lookup(self, partition_id: str, keys: Sequence[str]) -> dict[str, int]:
        """{key: index} of those keys that exist, in the order asked for."""
        partition = self.partitions.get(partition_id)
        if partition is None:
            return {}
        return {key: partition.indexes[key] for key in keys if key in partition.indexes}

    def forget(self, partition_id: str, keys: Sequence[str]) -> list[int]:
        """Drop keys with status and tags and give their indexes back; unknown ones are skipped. The partition stays
        listed.
        """
        found = self.lookup(partition_id, keys)
        for key in found:
            partition = self.partitions[partition_id]
            del partition.indexes[key], partition.tags[key]
            partition.last_writes.pop(key, None)
            partition.deep_tags.discard(key)
            for keys_of_task in partition.consumed.values():
                keys_of_task.discard(key)
        indexes = list(found.values())
        if indexes:
            self.num_filled -= self._count_filled(indexes)
            self.num_bytes -= self.cells.num_bytes(self.codes[indexes])
            self.codes[indexes] = 0
            self._free.extend(indexes)
        return indexes

    def _take_index(self) -> int:
        if self._free:
            return self._free.popleft()
        self._next_index += 1
        if self._next_index > self.codes.shape[0]:
            self._grow(2 * self.codes.shape[0], self.codes.shape[1])
        return self._next_index - 1

    # -- production status --------------------------------------------------------------------------------------------

    def publish(
        self,
        indexes: Sequence[int],
        blocks: Mapping[str, Block],
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        """Mark these fields of these rows as produced; from now on a get delivers them. Of an index given twice the
        last row counts.

        Raises QueueFullError, before anything is marked, if there would be more rows with fields or more bytes than
        the limits say.
        """
        rows, columns = np.array(indexes), np.array([self._column_of(name) for name in blocks])
        codes = np.empty((len(rows), len(columns)), dtype=np.int32)
        for number, block in enumerate(blocks.values()):
            codes[:, number] = block.codes(self.cells)
        if len(set(indexes)) < len(indexes):
            last = list({index: row for row, index in enumerate(indexes)}.values())
            rows, codes = rows[last], codes[last]
        cells = (rows[:, None], columns)
        num_rows = len(rows) - self._count_filled(rows)
        num_bytes = self.cells.num_bytes(codes) - self.cells.num_bytes(self.codes[cells])
        _check_room(num_rows, self.num_filled, "rows", "total_storage_size", max_rows)
        _check_room(num_bytes, self.num_bytes, "bytes", "max_bytes", max_bytes)
        self.codes[cells] = codes
        self.num_filled += num_rows
        self.num_bytes += num_bytes

    def ready_fields(self, indexes: Sequence[int]) -> list[str]:
        """Fields that every one of these rows has, sorted by name."""
        is_ready = np.asarray(self.codes[indexes].all(axis=0))
        return sorted([name for name, ready in zip(self.columns, is_ready.tolist(), strict=False) if ready])

    def _count_filled(self, indexes: Sequence[int] | np.ndarray) -> int:
        return int(np.count_nonzero(self.codes[indexes].any(axis=1)))

    def _column_of(self, name: str) -> int:
        if name not in self.columns:
            self.columns[name] = len(self.columns)
            if len(self.columns) > self.codes.shape[1]:
                self._grow(self.codes.shape[0], 2 * self.codes.shape[1])
        return self.columns[name]

    def _grow(self, num_rows: int, num_columns: int) -> None:
        grown = np.zeros((num_rows, num_columns), dtype=np.int32)
        grown[: self.codes.shape[0], : self.codes.shape[1]] = self.codes
        self.codes = grown

    # -- tags ---------------------------------------------------------------------------------------------------------

    def merge_tags(self, partition_id: str, keys: Sequence[str], tags: Sequence[Mapping[str, Any]]) -> None:
        """Merge each tag into the one that is stored; of a key given twice the last tag wins."""
        partition = self.partitions[partition_id]
        merged = [{**partition.tags[key], **tag} for key, tag in zip(keys, tags, strict=True)]
        for key, tag in zip(keys, merged, strict=True):
            partition.tags[key] = tag
            if not is_flat(tag):
                partition.deep_tags.add(key)


def _check_room(num_new: int, num_held: int, what: str, limit_name: str, limit: int | None) -> None:
    if limit is not None and num_new > 0 and num_held + num_new > limit:
        raise QueueFullError(
            f"Storage capacity exceeded: {num_held} {what} + {num_new} new > {limit_name}={limit}; clear rows that are "
            f"done with kv_clear or raise {limit_name}"
        )
