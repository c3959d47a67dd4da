"""The verbs as functions of a module, for code that was written for the TransferQueue package.

    from kitlib.transfer_queue import drop_in as tq
    tq.init()
    tq.kv_put("u1", "train", tag={"status": "pending"})
    tq.close()

TransferQueue 0.1.11: interface.py (init, close, get_client and the verbs as functions). Where the package keeps its
client and its actors in global variables, this module keeps one TransferQueue for the process: the only global queue
there is, and nothing else in kitlib uses it. To run somebody's `import transfer_queue as tq` on it:

    sys.modules["transfer_queue"] = kitlib.transfer_queue.drop_in
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitlib.transfer_queue.client import TransferQueueClient
from kitlib.transfer_queue.errors import NoQueueError
from kitlib.transfer_queue.local import TransferQueue
from kitlib.transfer_queue.metadata import KVBatchMeta as KVBatchMeta
from kitlib.transfer_queue.package import num_storage_units, setting
from kitlib.transfer_queue.samplers import Sampler


@dataclass
class _Process:
    """What this process has opened."""

    queue: TransferQueue | None = None
    client: TransferQueueClient | None = None


_lock = threading.Lock()
_process = _Process()


def init(conf: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
    """Make the queue of this process; returns `conf`. If there is one, it stays and `conf` is ignored.

    Reads backend.SimpleStorage.num_data_storage_units (2), backend.SimpleStorage.total_storage_size (null: no limit),
    controller.sampler (an instance; default sequential) and controller.polling_mode (false), ignores everything that
    is about processes. Raises QueueValueError for a number of units that makes no sense.
    """
    with _lock:
        if _process.queue is None:
            size = setting(conf, "backend", "SimpleStorage", "total_storage_size")
            _process.queue = TransferQueue(num_storage_units(conf), size)
            sampler = setting(conf, "controller", "sampler")
            polling = bool(setting(conf, "controller", "polling_mode"))
            own = sampler if isinstance(sampler, Sampler) else None
            _process.client = TransferQueueClient(_process.queue, own, polling)
    return conf


def close() -> None:
    """Drop the queue of this process and everything in it; without one it does nothing."""
    with _lock:
        if _process.queue is not None:
            _process.queue.close()
        _process.queue = _process.client = None


def queue() -> TransferQueue:
    """The queue itself, to take snapshots of or to hand on as `tq`. Raises NoQueueError before `init`."""
    if _process.queue is None:
        raise NoQueueError("there is no queue in this process: call init() first")
    return _process.queue


def get_client() -> TransferQueueClient:
    """The metadata level of the queue. Raises NoQueueError before `init`."""
    queue()
    assert _process.client is not None, "init makes both"
    return _process.client


def save_checkpoint(
    checkpoint_dir: str | Path, *, include_storage: bool = True, metadata: dict[str, Any] | None = None
) -> None:
    """Save the queue to a folder; see checkpoint.py. `include_storage` is ignored: values in memory are always saved,
    as by the package.
    """
    queue().save_checkpoint(checkpoint_dir, metadata=metadata)


def load_checkpoint(checkpoint_dir: str | Path) -> None:
    """Replace everything in the queue by a checkpoint; errors as TransferQueue.load_checkpoint."""
    queue().load_checkpoint(checkpoint_dir)


def _verb(name: str) -> Callable[..., Any]:
    """A verb or its async twin, of the queue that is there when it is called."""

    @functools.wraps(getattr(TransferQueue, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(queue(), name)(*args, **kwargs)

    return call


kv_put, async_kv_put = _verb("kv_put"), _verb("async_kv_put")
kv_batch_put, async_kv_batch_put = _verb("kv_batch_put"), _verb("async_kv_batch_put")
kv_batch_get, async_kv_batch_get = _verb("kv_batch_get"), _verb("async_kv_batch_get")
kv_batch_get_by_meta, async_kv_batch_get_by_meta = _verb("kv_batch_get_by_meta"), _verb("async_kv_batch_get_by_meta")
kv_list, async_kv_list = _verb("kv_list"), _verb("async_kv_list")
kv_clear, async_kv_clear = _verb("kv_clear"), _verb("async_kv_clear")
