"""The async twins of the verbs: the same arguments, the same results, for code that runs in an event loop.

They do the work at once and never wait for anything but the queue's lock, which is held for dictionary work only.
That is why one queue can be used from several event loops and from plain threads at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import TensorDict

from kitlib.transfer_queue.metadata import KVBatchMeta
from kitlib.transfer_queue.protocol import Listing


class AsyncTwins:
    """Mix-in for a queue whose verbs return at once."""

    if TYPE_CHECKING:
        kv_put: Any
        kv_batch_put: Any
        kv_batch_get: Any
        kv_batch_get_by_meta: Any
        kv_list: Any
        kv_clear: Any

    async def async_kv_put(self, *args: Any, **kwargs: Any) -> KVBatchMeta:
        """kv_put for coroutines."""
        return self.kv_put(*args, **kwargs)

    async def async_kv_batch_put(self, *args: Any, **kwargs: Any) -> KVBatchMeta:
        """kv_batch_put for coroutines."""
        return self.kv_batch_put(*args, **kwargs)

    async def async_kv_batch_get(self, *args: Any, **kwargs: Any) -> TensorDict:
        """kv_batch_get for coroutines."""
        return self.kv_batch_get(*args, **kwargs)

    async def async_kv_batch_get_by_meta(self, *args: Any, **kwargs: Any) -> TensorDict:
        """kv_batch_get_by_meta for coroutines."""
        return self.kv_batch_get_by_meta(*args, **kwargs)

    async def async_kv_list(self, *args: Any, **kwargs: Any) -> Listing:
        """kv_list for coroutines."""
        return self.kv_list(*args, **kwargs)

    async def async_kv_clear(self, *args: Any, **kwargs: Any) -> None:
        """kv_clear for coroutines."""
        self.kv_clear(*args, **kwargs)
