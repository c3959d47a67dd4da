"""Where each parameter of a sharded model lies, as plain rows that the inspector's shard map takes.

verl 0.9.1 has no counterpart. Every rank can tell for all ranks: FSDP2 cuts the first dim into pieces of
ceil(n / ranks) rows, so the last ranks may hold fewer, or none.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

ShardRow = tuple[str, tuple[int, ...], str, tuple[int, ...]]
"""Name, whole shape, placement, bytes on every rank."""


def shard_rows(model: nn.Module) -> list[ShardRow]:
    """One row a parameter, in the order of the model; tied parameters once."""
    return [(name, tuple(value.shape), *_placed(value)) for name, value in model.named_parameters()]


def _placed(value: Tensor) -> tuple[str, tuple[int, ...]]:
    """Placement as DTensor prints it ("whole" for a plain tensor), and bytes on every rank."""
    if not isinstance(value, DTensor):
        return "whole", (value.numel() * value.element_size(),)
    (placement,), num_ranks = value.placements, value.device_mesh.size()
    if not isinstance(placement, Shard):
        return str(placement), (value.numel() * value.element_size(),) * num_ranks
    length = value.shape[placement.dim]
    slice_bytes = value.numel() // max(length, 1) * value.element_size()
    return f"Shard({placement.dim})", tuple(rows * slice_bytes for rows in rows_per_rank(length, num_ranks))


def rows_per_rank(length: int, num_ranks: int) -> list[int]:
    """How many of `length` rows each rank gets, as torch.chunk cuts them."""
    most = math.ceil(length / num_ranks)
    return [max(0, min(most, length - rank * most)) for rank in range(num_ranks)]
