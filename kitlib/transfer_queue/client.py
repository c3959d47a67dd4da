"""The metadata level: ask for rows that are ready instead of naming keys, and remember per task what has been handed
out.

    client = TransferQueueClient(tq, GRPOGroupNSampler(8))
    meta = client.get_meta(["responses", "rm_scores"], batch_size=64, partition_id="train", task_name="advantage")
    data = client.get_data(meta)
    client.put(result, meta)

A row is ready for a task if it has all the fields asked for and the task has not consumed it. Consumption is kept per
task, so several tasks read the same rows independently, each as soon as its own fields are there.

TransferQueue 0.1.11: client.py, TransferQueueClient, and TransferQueueController.get_metadata. There rows are global
indexes and a BatchMeta names them; here every row has a key and the handle is a KVBatchMeta, so the key-value verbs
work on it too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from tensordict import TensorDict

from kitlib.transfer_queue.errors import QueueTimeoutError, QueueValueError
from kitlib.transfer_queue.explain import strict_get
from kitlib.transfer_queue.local import TransferQueue
from kitlib.transfer_queue.metadata import KVBatchMeta
from kitlib.transfer_queue.samplers import AUTO_PREFIX, Row, Sampler, SequentialSampler

Mode = Literal["fetch", "force_fetch", "insert"]


class TransferQueueClient:
    """Readers and writers of one queue that share a sampler; thread-safe.

    polling_mode True: get_meta returns an empty handle if there are not enough rows; False: it waits for `timeout`
    seconds.
    """

    def __init__(
        self, tq: TransferQueue, sampler: Sampler | None = None, polling_mode: bool = False, timeout: float = 1.0
    ) -> None:
        self._tq = tq
        self._sampler = SequentialSampler() if sampler is None else sampler
        self._polling_mode = polling_mode
        self._timeout = timeout
        self._lock = threading.Lock()
        self._handed_out: dict[tuple[Any, ...], list[str]] = {}  # (partition, task, dp_rank, batch_index) -> keys
        self._num_unnamed = 0

    def get_meta(
        self,
        data_fields: Sequence[str],
        batch_size: int,
        partition_id: str,
        mode: Mode = "fetch",
        task_name: str | None = None,
        sampling_config: dict[str, Any] | None = None,
    ) -> KVBatchMeta:
        """A handle of rows, with `fields` set to data_fields.

        fetch: batch_size rows that are ready for task_name, as the sampler chooses; they count as consumed by the
        task from now on. force_fetch: all rows of the partition, ready or not, consumed or not. insert: batch_size
        new rows without fields. sampling_config goes to the sampler; with dp_rank and batch_index in it the same call
        gets the same rows again. Raises QueueTimeoutError (also a TimeoutError) if too few rows become ready,
        QueueValueError for wrong arguments.
        """
        if mode == "insert":
            return self._tq.kv_batch_put(self._new_keys(batch_size), partition_id, tags=[{}] * batch_size)
        if mode == "force_fetch":
            return self._handle(list(self._tq.kv_list(partition_id).get(partition_id, {})), partition_id, data_fields)
        if mode != "fetch" or task_name is None or batch_size < 1:
            raise QueueValueError(
                "get_meta needs mode fetch, force_fetch or insert, a task_name to fetch and a batch_size >= 1; "
                f"got {mode!r}, {task_name!r}, {batch_size!r}"
            )
        deadline = time.monotonic() + self._timeout
        while True:
            version = self._tq.version
            keys = self._fetch(data_fields, batch_size, partition_id, task_name, sampling_config or {})
            if keys:
                return self._handle(keys, partition_id, data_fields)
            if self._polling_mode:
                return KVBatchMeta(partition_id=partition_id)
            left = deadline - time.monotonic()
            if left <= 0:
                num_ready = len(self._ready(data_fields, partition_id, task_name))
                raise QueueTimeoutError(
                    f"{self._timeout} s are over: task {task_name!r} asked for {batch_size} rows of partition "
                    f"{partition_id!r} with {list(data_fields)}; {num_ready} are ready and not consumed"
                )
            self._tq.wait_for_change(version, left)

    def get_data(self, metadata: KVBatchMeta) -> TensorDict:
        """All fields of the handle for all of its rows; MissingFieldsError if one is not there."""
        return strict_get(self._tq, metadata, None)

    def put(
        self, data: TensorDict, metadata: KVBatchMeta | None = None, partition_id: str | None = None
    ) -> KVBatchMeta:
        """Store fields for the rows of the handle, or for new rows of partition_id if there is no handle."""
        if metadata is None:
            if partition_id is None:
                raise QueueValueError("put needs a handle, or the partition_id of new rows")
            return self._tq.kv_batch_put(self._new_keys(data.batch_size[0]), partition_id, data)
        return self._tq.kv_batch_put(metadata.keys, metadata.partition_id or "", data)

    def is_consumed(self, task_name: str, partition_id: str) -> bool:
        """True if the partition has rows and the task has consumed every row that has fields."""
        part = self._tq.snapshot(partition_id).partitions.get(partition_id)
        if part is None:
            return False
        filled = {key for key, row in zip(part.keys, part.present, strict=True) if row.any()}
        return bool(filled) and filled <= part.consumed.get(task_name, frozenset())

    def is_produced(self, data_fields: Sequence[str], partition_id: str) -> bool:
        """True if the partition has rows and all of them have these fields."""
        part = self._tq.snapshot(partition_id).partitions.get(partition_id)
        return part is not None and bool(part.keys) and all(part.has(k, f) for k in part.keys for f in data_fields)

    def reset_consumption(self, partition_id: str, task_name: str | None = None) -> None:
        """Let a task (or every task) see all rows of the partition again."""
        with self._lock:
            self._tq.reset_consumption(partition_id, task_name)
            for call in [c for c in self._handed_out if c[0] == partition_id and task_name in (None, c[1])]:
                del self._handed_out[call]

    def clear_samples(self, metadata: KVBatchMeta) -> None:
        """Remove the rows of the handle."""
        self._tq.kv_clear(metadata.keys, metadata.partition_id or "")

    def _fetch(
        self, data_fields: Sequence[str], batch_size: int, partition_id: str, task_name: str, config: dict[str, Any]
    ) -> list[str]:
        """Choose, remember and mark in one step; no keys if there are not enough rows."""
        asks_for_rank = "dp_rank" in config and "batch_index" in config
        call = (partition_id, task_name, config.get("dp_rank"), config.get("batch_index"))
        with self._lock:
            if asks_for_rank and call in self._handed_out:
                return self._handed_out[call]
            ready = self._ready(data_fields, partition_id, task_name)
            plan = self._sampler.plan(ready, batch_size, **config)
            for rank, rows in plan.items():
                keys = [row.key for row in rows]
                if keys and asks_for_rank:
                    self._handed_out[(partition_id, task_name, rank, config["batch_index"])] = keys
                if keys and self._sampler.consumes:
                    self._tq.mark_consumed(partition_id, task_name, keys)
            return [row.key for row in plan.get(config.get("dp_rank"), ())]

    def _ready(self, data_fields: Sequence[str], partition_id: str, task_name: str) -> list[Row]:
        part = self._tq.snapshot(partition_id).partitions.get(partition_id)
        if part is None or any(field not in part.column_of for field in data_fields):
            return []
        columns = [part.column_of[field] for field in data_fields]
        complete = np.all(part.present[:, columns], axis=1)
        consumed = part.consumed.get(task_name, frozenset())
        rows = zip(part.keys, part.tags, complete, strict=True)
        return [Row(key, tag) for key, tag, is_complete in rows if is_complete and key not in consumed]

    def _handle(self, keys: list[str], partition_id: str, data_fields: Sequence[str]) -> KVBatchMeta:
        tags = self._tq.kv_list(partition_id).get(partition_id, {})
        return KVBatchMeta(keys, [tags.get(key, {}) for key in keys], partition_id, list(data_fields))

    def _new_keys(self, num_rows: int) -> list[str]:
        with self._lock:
            first, self._num_unnamed = self._num_unnamed, self._num_unnamed + num_rows
        return [f"{AUTO_PREFIX}{number}" for number in range(first, first + num_rows)]
