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

    def publish(self, indexes: Sequence[int], blocks: Mapping[str, Block]) -> None:
        """Mark these fields of these rows as produced; from now on a get delivers them."""
        columns = [self._column_of(name) for name in blocks]
        rows = np.unique(np.asarray(indexes))
        filled_before, bytes_before = self._count_filled(rows), self._count_bytes(rows, columns)
        for column, block in zip(columns, blocks.values(), strict=True):
            self.codes[indexes, column] = block.codes(self.cells)
        self.num_bytes += self._count_bytes(rows, columns) - bytes_before
        self.num_filled += self._count_filled(rows) - filled_before

    def ready_fields(self, indexes: Sequence[int]) -> list[str]:
        """Fields that every one of these rows has, sorted by name."""
        ready = np.all(self.codes[indexes] > 0, axis=0)
        return sorted(name for name, column in self.columns.items() if ready[column])

    def _count_new(self, indexes: Sequence[int]) -> int:
        """How many of these rows have no field yet."""
        distinct = np.unique(np.asarray(indexes))
        return len(distinct) - self._count_filled(distinct)

    def check_capacity(
        self, indexes: Sequence[int], blocks: Mapping[str, Block], max_rows: int | None, max_bytes: int | None
    ) -> None:
        """Raise QueueFullError if these rows would exceed a limit; keys with tags only are free."""
        if max_rows is not None:
            num_new = self._count_new(indexes)
            if self.num_filled + num_new > max_rows:
                raise QueueFullError(
                    f"Storage capacity exceeded: {self.num_filled} rows + {num_new} new > total_storage_size="
                    f"{max_rows}; clear rows that are done with kv_clear or raise total_storage_size"
                )
        if max_bytes is not None:
            num_bytes = sum(block.num_bytes for block in blocks.values())
            if self.num_bytes + num_bytes > max_bytes:
                raise QueueFullError(
                    f"Storage capacity exceeded: {self.num_bytes} bytes + {num_bytes} > "
                    f"max_bytes={max_bytes}; clear rows that are done with kv_clear or raise max_bytes"
                )

    def _count_filled(self, indexes: Sequence[int] | np.ndarray) -> int:
        return int((self.codes[indexes] > 0).any(axis=1).sum())

    def _count_bytes(self, rows: np.ndarray, columns: Sequence[int]) -> int:
        return self.cells.num_bytes(self.codes[rows[:, None], np.asarray(columns)])

    def _column_of(self, name: str) -> int:
        column = self.columns.setdefault(name, len(self.columns))
        if column >= self.codes.shape[1]:
            self._grow(self.codes.shape[0], 2 * self.codes.shape[1])
        return column

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
