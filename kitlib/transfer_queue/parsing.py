"""The `data_parser` argument of a put: turn references (file names, URLs) into content on the way into the store.

TransferQueue 0.1.11: storage/simple_storage.py, SimpleStorageUnit._handle_put. There the parser runs in the storage
unit, on that unit's part of the rows; here once a put, on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kitlib.transfer_queue.blocks import Block, DenseBlock, RowBlock
from kitlib.transfer_queue.columns import to_block
from kitlib.transfer_queue.errors import QueueRuntimeError
from kitlib.transfer_queue.protocol import DataParser


def parse_fields(blocks: Mapping[str, Block], data_parser: DataParser | None) -> Mapping[str, Block]:
    """Hand the rows to the parser as {field: values} and take its dict back.

    A dense column goes in as one tensor, everything else as a list. The parser returns a dict of the same fields with
    as many values each. Raises QueueRuntimeError if it raises or does not.
    """
    if data_parser is None or not blocks:
        return blocks
    try:
        parsed = data_parser({name: _as_batch(block) for name, block in blocks.items()})
    except Exception as error:
        raise QueueRuntimeError(f"data_parser raised {type(error).__name__}: {error}") from error
    if not isinstance(parsed, dict):
        raise QueueRuntimeError(f"data_parser must return a dict, not {type(parsed).__name__}")
    if parsed.keys() != blocks.keys():
        raise QueueRuntimeError(f"data_parser must not change the fields: {sorted(blocks)} became {sorted(parsed)}")
    for name, values in parsed.items():
        if len(values) != len(blocks[name]):
            raise QueueRuntimeError(f"data_parser turned {len(blocks[name])} values of {name!r} into {len(values)}")
    return {name: to_block(name, values, len(values)) for name, values in parsed.items()}


def _as_batch(block: Block) -> torch.Tensor | list[Any]:
    if isinstance(block, RowBlock):
        return block.value.unsqueeze(0)
    return block.values if isinstance(block, DenseBlock) else [block.row(number) for number in range(len(block))]
