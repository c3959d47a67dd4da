"""Checks of what a verb is handed, each with the error the package raises in the same case.

TransferQueue 0.1.11: client.py, AsyncTransferQueueClient.async_kv_retrieve_meta, and interface.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from kitlib.transfer_queue.blocks import Block, RowBlock
from kitlib.transfer_queue.columns import own_copy, to_block
from kitlib.transfer_queue.errors import QueueTypeError, QueueValueError
from kitlib.transfer_queue.values import stored_tag


def checked_keys(keys: list[str] | str) -> list[str]:
    """The keys as a list. QueueTypeError for anything but a string or a list of them, QueueValueError for none."""
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, list):
        raise QueueTypeError(f"Only string or list of strings are allowed as `keys`, not {type(keys).__name__}")
    if not keys:
        raise QueueValueError("Received an empty list as keys.")
    wrong = [key for key in keys if not isinstance(key, str)]
    if wrong:
        raise QueueTypeError(f"Not all elements in `keys` are strings: {few(wrong)}")
    return list(keys)


def check_partition(partition_id: Any) -> None:
    """Raise QueueTypeError unless the partition is named by a string."""
    if not isinstance(partition_id, str):
        raise QueueTypeError(f"partition_id is a string such as 'train', not {partition_id!r:.60}")


def stored_tags(tags: Any, keys: Sequence[str]) -> list[dict[str, Any]]:
    """One tag a key as the store keeps it. QueueValueError if the numbers differ, QueueTypeError for what is no tag."""
    if not isinstance(tags, Sequence) or isinstance(tags, str):
        raise QueueTypeError(f"`tags` is a list with a dict for every key, not {type(tags).__name__}")
    if len(tags) != len(keys):
        raise QueueValueError(f"keys with length {len(keys)} does not match length of tags {len(tags)}")
    return [stored_tag(tag) for tag in tags]


def check_batch_size(fields: Any, keys: Sequence[str]) -> None:
    """Raise unless `fields` is a TensorDict of as many rows as there are keys."""
    if not isinstance(fields, TensorDictBase):
        raise QueueTypeError(f"`fields` must be a TensorDict of batch size [{len(keys)}], not {type(fields).__name__}")
    if len(fields.batch_size) == 0 or fields.batch_size[0] != len(keys):
        raise QueueValueError(
            f"`keys` with length {len(keys)} does not match the `fields` TensorDict with "
            f"batch_size {list(fields.batch_size)}"
        )


def single_row(name: str, value: Any) -> Block:
    """The block of one row value, as kv_put takes it. QueueValueError for a nested tensor: that has several rows."""
    if not isinstance(name, str):
        raise QueueTypeError(f"the name of a field is a string, not {name!r:.60}")
    if not isinstance(value, torch.Tensor):
        return to_block(name, [value], 1)
    if value.is_nested:
        raise QueueValueError(f"field {name!r} is a nested tensor: use kv_batch_put, a nested tensor has several rows")
    return RowBlock(own_copy(value))


def few(values: Sequence[Any]) -> str:
    """The first values, and how many more there are."""
    shown = ", ".join(repr(value) for value in values[:5])
    return shown if len(values) <= 5 else f"{shown} and {len(values) - 5} more"
