"""WatchedQueue: any object with the verbs, recorded by an EventLog.

An async twin is recorded under the name of its verb. What the queue offers beyond the verbs is passed through.
Cost: a put describes its columns (dtype and row lengths, no copy), which is a few microseconds a key.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from kitlib.transfer_queue.actors import current_actor
from kitlib.transfer_queue.cells import tensor_cell
from kitlib.transfer_queue.columns import flat_jagged
from kitlib.transfer_queue.events import Column, Event, EventLog
from kitlib.transfer_queue.metadata import KVBatchMeta
from kitlib.transfer_queue.protocol import DataParser, Listing
from kitlib.transfer_queue.snapshot import QueueSnapshot, take_snapshot


def watch(queue: Any, log: EventLog | None = None) -> WatchedQueue:
    """The queue with every verb recorded; `.log` is the EventLog."""
    return WatchedQueue(queue, EventLog() if log is None else log)


@dataclass
class _Notes:
    """What a verb adds to its event while it runs."""

    fields: dict[str, Column | None] = field(default_factory=dict)
    num_bytes: int = 0


class WatchedQueue:
    """See `watch`. queue: the queue itself, to call past the log."""

    def __init__(self, queue: Any, log: EventLog) -> None:
        self.queue = queue
        self.log = log

    def __getattr__(self, name: str) -> Any:
        if name == "queue":  # copy and pickle look before __init__ has run
            raise AttributeError(name)
        return getattr(self.queue, name)

    def snapshot(self, partition_id: str | None = None, keys: Sequence[str] | None = None) -> QueueSnapshot:
        """The queue's own picture; last writes that the queue does not know are taken from the log."""
        snapshot = take_snapshot(self.queue, partition_id, keys)
        unsigned = {name: part for name, part in snapshot.partitions.items() if part.keys and not part.last_writes}
        for name, part in unsigned.items():
            known = self.log.last_writes(name)
            unsigned[name] = replace(part, last_writes=tuple(known.get(key) for key in part.keys))
        return replace(snapshot, partitions=snapshot.partitions | unsigned)

    def kv_put(
        self,
        key: str,
        partition_id: str,
        fields: TensorDict | dict[str, Any] | None = None,
        tag: dict[str, Any] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """kv_put, recorded."""
        with self._event("kv_put", partition_id, key, fields, None if tag is None else [tag]):
            return self.queue.kv_put(key, partition_id, fields, tag, data_parser)

    def kv_batch_put(
        self,
        keys: list[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: list[dict[str, Any]] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """kv_batch_put, recorded."""
        with self._event("kv_batch_put", partition_id, keys, fields, tags):
            return self.queue.kv_batch_put(keys, partition_id, fields, tags, data_parser)

    def kv_batch_get(
        self, keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None
    ) -> TensorDict:
        """kv_batch_get, recorded with the fields that it delivered."""
        with self._event("kv_batch_get", partition_id, keys) as notes:
            return _noted(self.queue.kv_batch_get(keys, partition_id, select_fields), notes)

    def kv_batch_get_by_meta(self, meta: KVBatchMeta, select_fields: list[str] | str | None = None) -> TensorDict:
        """kv_batch_get_by_meta, recorded with the fields that it delivered."""
        with self._event("kv_batch_get_by_meta", meta.partition_id, meta.keys) as notes:
            return _noted(self.queue.kv_batch_get_by_meta(meta, select_fields), notes)

    def kv_list(self, partition_id: str | None = None) -> Listing:
        """kv_list, recorded without the keys."""
        with self._event("kv_list", partition_id, ()):
            return self.queue.kv_list(partition_id)

    def kv_clear(self, keys: list[str] | str, partition_id: str) -> None:
        """kv_clear, recorded."""
        with self._event("kv_clear", partition_id, keys):
            self.queue.kv_clear(keys, partition_id)

    async def async_kv_put(
        self,
        key: str,
        partition_id: str,
        fields: TensorDict | dict[str, Any] | None = None,
        tag: dict[str, Any] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """async_kv_put, recorded as kv_put."""
        with self._event("kv_put", partition_id, key, fields, None if tag is None else [tag]):
            return await self.queue.async_kv_put(key, partition_id, fields, tag, data_parser)

    async def async_kv_batch_put(
        self,
        keys: list[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: list[dict[str, Any]] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """async_kv_batch_put, recorded as kv_batch_put."""
        with self._event("kv_batch_put", partition_id, keys, fields, tags):
            return await self.queue.async_kv_batch_put(keys, partition_id, fields, tags, data_parser)

    async def async_kv_batch_get(
        self, keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None
    ) -> TensorDict:
        """async_kv_batch_get, recorded as kv_batch_get."""
        with self._event("kv_batch_get", partition_id, keys) as notes:
            return _noted(await self.queue.async_kv_batch_get(keys, partition_id, select_fields), notes)

    async def async_kv_batch_get_by_meta(
        self, meta: KVBatchMeta, select_fields: list[str] | str | None = None
    ) -> TensorDict:
        """async_kv_batch_get_by_meta, recorded as kv_batch_get_by_meta."""
        with self._event("kv_batch_get_by_meta", meta.partition_id, meta.keys) as notes:
            return _noted(await self.queue.async_kv_batch_get_by_meta(meta, select_fields), notes)

    async def async_kv_list(self, partition_id: str | None = None) -> Listing:
        """async_kv_list, recorded as kv_list."""
        with self._event("kv_list", partition_id, ()):
            return await self.queue.async_kv_list(partition_id)

    async def async_kv_clear(self, keys: list[str] | str, partition_id: str) -> None:
        """async_kv_clear, recorded as kv_clear."""
        with self._event("kv_clear", partition_id, keys):
            await self.queue.async_kv_clear(keys, partition_id)

    @contextlib.contextmanager
    def _event(
        self, verb: str, partition_id: str | None, keys: Any, fields: Any = None, tags: Any = None
    ) -> Iterator[_Notes]:
        """Record the call inside, whether it returns or raises."""
        notes, started_at, start = _Notes(), time.time(), time.perf_counter()
        error = None
        try:
            yield notes
        except BaseException as raised:
            error = f"{type(raised).__name__}: {str(raised).partition(chr(10))[0]}"
            raise
        finally:
            seconds = time.perf_counter() - start
            _note_put(fields, notes)
            self.log.record(
                Event(
                    number=0,
                    verb=verb,
                    partition_id=partition_id,
                    keys=(keys,) if isinstance(keys, str) else tuple(keys),
                    fields=notes.fields,
                    tags=tuple(dict(tag) for tag in tags or () if isinstance(tag, dict)),
                    num_bytes=notes.num_bytes,
                    started_at=started_at,
                    seconds=seconds,
                    who=current_actor(),
                    thread=threading.current_thread().name,
                    error=error,
                )
            )


def _note_put(fields: Any, notes: _Notes) -> None:
    if isinstance(fields, TensorDictBase):
        notes.fields = {name: _column(values) for name, values in fields.items()}
    elif isinstance(fields, dict):
        notes.fields = {name: _row(value) for name, value in fields.items()}
    else:
        return  # no fields, or an argument that the queue refused
    notes.num_bytes = sum(column.num_bytes for column in notes.fields.values() if column is not None)


_ONE_OBJECT = Column("object", "object", 1, 0, ())


def _row(value: Any) -> Column:
    """A row value of kv_put as a column of one row."""
    if not isinstance(value, torch.Tensor):
        return _ONE_OBJECT
    return _column(value) if value.is_nested else _dense(value.dtype, value.shape, 1)


@functools.lru_cache(maxsize=4096)
def _dense(dtype: torch.dtype, row_shape: tuple[int, ...], num_rows: int) -> Column:
    """Rows of one shape. Cached: lengths of trajectories repeat, and a torch dtype is slow to spell."""
    cell = tensor_cell(dtype, tuple(row_shape))
    return Column(cell.dtype, cell.layout, num_rows, cell.num_bytes, cell.shape)


def _column(values: Any) -> Column:
    """Describe a column without a copy and with as few questions to torch as possible."""
    if not isinstance(values, torch.Tensor):
        return Column("object", "object", len(values) if hasattr(values, "__len__") else 1, 0, ())
    if (flat := flat_jagged(values)) is not None:
        lengths = tuple(values.offsets().diff().tolist())  # type: ignore[attr-defined]
        return Column(_name(flat.dtype), "row", len(lengths), flat.itemsize, (), lengths)
    if values.is_nested:
        return Column(_name(values.dtype), "row", values.size(0), 0, ())
    return _dense(values.dtype, values.shape[1:], values.shape[0] if values.dim() else 1)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _noted(data: TensorDict, notes: _Notes) -> TensorDict:
    for name, column in data.items():
        notes.fields[name] = None
        if isinstance(column, torch.Tensor):
            notes.num_bytes += (column.values() if column.is_nested else column).nbytes
    return data
