"""The one store protocol: what every queue offers and every stage may use.

TransferQueue 0.1.11: interface.py. Our in-process TransferQueue satisfies it, and so does the package itself: after
`import transfer_queue as tq; tq.init()` the module `tq` can be handed to anything that takes a `QueueProtocol`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tensordict import TensorDict

from kitlib.transfer_queue.metadata import KVBatchMeta

DataParser = Callable[[Any], Any]
Listing = dict[str, dict[str, dict[str, Any]]]  # partition_id -> key -> tag


class QueueProtocol(Protocol):
    """The six verbs and their async twins; TransferQueue in local.py says what each does."""

    def kv_put(
        self,
        key: str,
        partition_id: str,
        fields: TensorDict | dict[str, Any] | None = None,
        tag: dict[str, Any] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta: ...

    def kv_batch_put(
        self,
        keys: list[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: list[dict[str, Any]] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta: ...

    def kv_batch_get(
        self, keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None
    ) -> TensorDict: ...

    def kv_batch_get_by_meta(self, meta: KVBatchMeta, select_fields: list[str] | str | None = None) -> TensorDict: ...

    def kv_list(self, partition_id: str | None = None) -> Listing: ...

    def kv_clear(self, keys: list[str] | str, partition_id: str) -> None: ...

    async def async_kv_put(
        self,
        key: str,
        partition_id: str,
        fields: TensorDict | dict[str, Any] | None = None,
        tag: dict[str, Any] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta: ...

    async def async_kv_batch_put(
        self,
        keys: list[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: list[dict[str, Any]] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta: ...

    async def async_kv_batch_get(
        self, keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None
    ) -> TensorDict: ...

    async def async_kv_batch_get_by_meta(
        self, meta: KVBatchMeta, select_fields: list[str] | str | None = None
    ) -> TensorDict: ...

    async def async_kv_list(self, partition_id: str | None = None) -> Listing: ...

    async def async_kv_clear(self, keys: list[str] | str, partition_id: str) -> None: ...
