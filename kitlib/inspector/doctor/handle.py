"""`Handle`: keys, fields and extra_info of a batch or of a request, as they came, even where they make no sense.

verl 0.9.1 and the package hand batches around as KVBatchMeta, which refuses duplicate keys when it is made. A case file
or a traceback may hold just such a batch, so the doctor has this unchecked form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kitlib.errors import KitError
from kitlib.transfer_queue import GetReport


class HandleError(KitError, TypeError):
    """Something that is no handle."""


@dataclass(frozen=True)
class Handle:
    """keys in order; fields None: no restriction."""

    keys: tuple[str, ...]
    partition_id: str = "train"
    fields: tuple[str, ...] | None = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)


def handle_of(batch: Any) -> Handle | None:
    """A KVBatchMeta (ours or the package's), the report of a get, or a dict with the same names as a Handle; None
    stays None."""
    if batch is None or isinstance(batch, Handle):
        return batch
    if isinstance(batch, GetReport):
        return Handle(tuple(batch.requested_keys), batch.partition_id, tuple(batch.requested_fields))
    get = batch.get if isinstance(batch, Mapping) else lambda name: getattr(batch, name, None)
    keys = get("keys")
    if not isinstance(keys, list | tuple):
        raise HandleError(f"a batch is a KVBatchMeta or a dict with keys, partition_id and fields, not {batch!r:.60}")
    fields = get("fields")
    return Handle(
        tuple(keys),
        get("partition_id") or "train",
        None if fields is None else tuple(fields),
        dict(get("extra_info") or {}),
    )
