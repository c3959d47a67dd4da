"""The backends of the conformance tests: the in-process queue, and the package on Ray if it is installed.

The package has one global queue and keeps emptied partitions listed, so every test gets its own partition names.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from kitlib.transfer_queue import KVBatchMeta, TransferQueue
from kitlib.transfer_queue.package import connect

_numbers = itertools.count()


class OwnPartitions:
    """A queue whose partition names carry a prefix that nobody else uses; results show the names without it."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._prefix = f"test{next(_numbers)}/"

    def kv_put(self, key: Any, partition_id: str, *args: Any, **kwargs: Any) -> Any:
        return self._own(self._queue.kv_put(key, self._prefix + partition_id, *args, **kwargs))

    def kv_batch_put(self, keys: Any, partition_id: str, *args: Any, **kwargs: Any) -> Any:
        return self._own(self._queue.kv_batch_put(keys, self._prefix + partition_id, *args, **kwargs))

    def kv_batch_get(self, keys: Any, partition_id: str, *args: Any, **kwargs: Any) -> Any:
        return self._queue.kv_batch_get(keys, self._prefix + partition_id, *args, **kwargs)

    def kv_batch_get_by_meta(self, meta: KVBatchMeta, select_fields: Any = None) -> Any:
        name = None if meta.partition_id is None else self._prefix + meta.partition_id
        own = KVBatchMeta(meta.keys, meta.tags, name, meta.fields, meta.extra_info)
        return self._queue.kv_batch_get_by_meta(own, select_fields)

    def kv_list(self, partition_id: str | None = None) -> Any:
        name = None if partition_id is None else self._prefix + partition_id
        listed = self._queue.kv_list(name)
        return {n.removeprefix(self._prefix): keys for n, keys in listed.items() if n.startswith(self._prefix)}

    def kv_clear(self, keys: Any, partition_id: str) -> None:
        self._queue.kv_clear(keys, self._prefix + partition_id)

    def snapshot(self, partition_id: str) -> Any:
        return self._queue.snapshot(self._prefix + partition_id).partitions[self._prefix + partition_id]

    def __getattr__(self, name: str) -> Any:
        """The async twins that take keys and a partition."""
        if not name.startswith("async_"):
            raise AttributeError(name)

        async def call(keys: Any, partition_id: str, *args: Any, **kwargs: Any) -> Any:
            return self._own(await getattr(self._queue, name)(keys, self._prefix + partition_id, *args, **kwargs))

        return call

    def _own(self, result: Any) -> Any:
        """Handles of either class as ours, with the short partition name."""
        if not hasattr(result, "extra_info"):
            return result
        name = result.partition_id.removeprefix(self._prefix)
        return KVBatchMeta(result.keys, result.tags, name, result.fields, result.extra_info)


@pytest.fixture(scope="session")
def package_queue() -> Iterator[Any]:
    """The package on Ray, started once for the session."""
    for name in ("ray", "transfer_queue"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (extra `ray`)")
    queue = connect({"backend": {"SimpleStorage": {"num_data_storage_units": 2}}}, num_cpus=8)
    yield queue
    import ray

    queue.close()
    ray.shutdown()


@pytest.fixture(params=["local", pytest.param("package", marks=pytest.mark.ray)])
def tq(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Every backend in turn, with partitions of its own."""
    if request.param == "package":
        yield OwnPartitions(request.getfixturevalue("package_queue"))
        return
    queue = TransferQueue()
    yield OwnPartitions(queue)
    queue.close()
