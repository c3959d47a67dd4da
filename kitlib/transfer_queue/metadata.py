"""KVBatchMeta: what moves between stages instead of tensors.

TransferQueue 0.1.11: metadata.py, KVBatchMeta (same fields, methods, checks and error types). A stage gets one, a
worker asks the queue for the fields it reads, and puts back the fields it writes.

    KVBatchMeta(keys=["f3a1_0_0", ...], tags=[{"status": "success", ...}, ...], partition_id="train",
                fields=None, extra_info={"temperature": 1.0})

`fields` None means "whatever all rows have"; a list limits what a get by this handle fetches. `extra_info` carries
values for the whole batch (temperature, switches) to the workers.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kitlib.transfer_queue.errors import QueueRuntimeError, QueueValueError
from kitlib.transfer_queue.values import copy_tag

logger = logging.getLogger(__name__)


@dataclass
class KVBatchMeta:
    """Handle of a batch: its keys in order, a tag for each, and what goes for all of them.

    Raises QueueValueError if there are not as many tags as keys, or if a key or a field appears twice. Tags and
    extra_info are copied: changing the handle changes neither the queue nor another handle.
    """

    keys: list[str] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)
    partition_id: str | None = None
    fields: list[str] | None = None
    extra_info: dict[str, Any] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.tags):
            raise QueueValueError(
                f"keys and tags must have same length, but there are {len(self.keys)} and {len(self.tags)}"
            )
        _refuse_duplicates("keys", self.keys)
        _refuse_duplicates("fields", self.fields or [])
        self.tags = [copy_tag(tag) for tag in self.tags]
        self.extra_info = copy.deepcopy(self.extra_info)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __str__(self) -> str:
        return f"KVBatchMeta(size={self.size}, field_names={self.fields}, extra_info={self.extra_info})"

    def select_keys(self, keys_to_select: list[str]) -> KVBatchMeta:
        """A new handle of these keys in this order. QueueValueError for duplicates, QueueRuntimeError for keys not in
        here.
        """
        _refuse_duplicates("keys", keys_to_select)
        position = {key: number for number, key in enumerate(self.keys)}
        unknown = [key for key in keys_to_select if key not in position]
        if unknown:
            raise QueueRuntimeError(f"Keys {unknown} not found in current batch of {self.size} keys")
        return self._with_rows(list(keys_to_select), [self.tags[position[key]] for key in keys_to_select])

    def reorder(self, indexes: list[int]) -> None:
        """Bring the rows into this order, in place. QueueValueError unless `indexes` has every row once."""
        if len(indexes) != self.size:
            raise QueueValueError(
                f"reorder got {len(indexes)} indexes, which does not match the batch size of {self.size}"
            )
        _refuse_duplicates("indexes", indexes)
        self.keys = [self.keys[index] for index in indexes]
        self.tags = [self.tags[index] for index in indexes]

    def chunk(self, chunks: int) -> list[KVBatchMeta]:
        """`chunks` consecutive parts; the first ones are longer by one row if it does not divide, the last may be
        empty.
        """
        if self.size < chunks:
            logger.warning("chunk: %d parts of %d rows, some will be empty", chunks, self.size)
        base, remainder = divmod(self.size, chunks)
        parts, start = [], 0
        for number in range(chunks):
            end = start + base + (number < remainder)
            parts.append(self._with_rows(self.keys[start:end], self.tags[start:end]))
            start = end
        return parts

    @classmethod
    def concat(cls, data: Sequence[KVBatchMeta]) -> KVBatchMeta:
        """One handle of all rows in order; empty parts are skipped.

        Raises QueueValueError if partitions or fields differ, if a key appears twice, or if two parts disagree on a
        value of extra_info.
        """
        parts = [part for part in data if part and part.size > 0]
        if not parts:
            logger.warning("concat: nothing to concatenate, the result is an empty KVBatchMeta")
            return cls()
        first = parts[0]
        for part in parts:
            if part.fields is not None and set(part.fields) != set(first.fields or []):
                raise QueueValueError(f"Field names do not match for concatenation: {first.fields} and {part.fields}")
            if part.partition_id != first.partition_id:
                raise QueueValueError(
                    f"Partition do not match for concatenation: {first.partition_id!r} and {part.partition_id!r}"
                )
        return cls(
            keys=[key for part in parts for key in part.keys],
            tags=[tag for part in parts for tag in part.tags],
            partition_id=first.partition_id,
            fields=first.fields,
            extra_info=_merged_extra_info(parts) or None,
        )

    def _with_rows(self, keys: list[str], tags: list[dict[str, Any]]) -> KVBatchMeta:
        return KVBatchMeta(keys, tags, self.partition_id, self.fields, self.extra_info)


def _refuse_duplicates(what: str, values: Sequence[Any]) -> None:
    if len(values) != len(set(values)):
        twice = [value for value in dict.fromkeys(values) if list(values).count(value) > 1]
        raise QueueValueError(f"Got duplicated {what}. Contain duplicate {what}: {twice[:5]}")


def _merged_extra_info(parts: Iterable[KVBatchMeta]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        for name, value in (part.extra_info or {}).items():
            if name in merged and not _equal(merged[name], value):
                raise QueueValueError(f"extra_info key {name!r} has conflicting values: {merged[name]!r} and {value!r}")
            merged.setdefault(name, value)
    return merged


def _equal(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right)
    return bool(left == right)
