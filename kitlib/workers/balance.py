"""Equal work for every rank: split rows so that the sums of their costs are close.

verl 0.9.1: utils/seqlen_balancing.py, calculate_workload, get_seqlen_balanced_partitions, karmarkar_karp,
log_seqlen_unbalance. Left out: the greedy partition. Ties are broken as in verl, so that the same lengths give the
same partitions.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kitlib.workers.errors import WorkerError


def calculate_workload(seq_len: Tensor | Sequence[int]) -> Tensor:
    """Relative cost of a row of `seq_len` tokens, int64 [num_rows]: 24576 s + s^2.

    The layers of a transformer take about 12 h^2 s + 2 h s^2 multiplications; divided by 2 h, with h = 4096 (a 7B
    model).
    """
    seq_len = torch.as_tensor(seq_len, dtype=torch.int64)
    return 24576 * seq_len + seq_len**2


def get_seqlen_balanced_partitions(
    workload: Tensor | Sequence[int], k_partitions: int, equal_size: bool
) -> list[list[int]]:
    """Split row numbers 0..num_rows-1 into `k_partitions` sorted lists with close sums of `workload`.

    equal_size: every list has the same number of rows. Karmarkar and Karp's largest differencing method ("The
    differencing method of set partitioning", 1982). Raises WorkerError if there are fewer rows than partitions, or
    rows do not divide.
    """
    costs = [int(cost) for cost in workload]
    if len(costs) < k_partitions:
        raise WorkerError(f"{len(costs)} rows cannot be split over {k_partitions} ranks")
    if equal_size and len(costs) % k_partitions:
        raise WorkerError(
            f"{len(costs)} rows do not divide by {k_partitions} ranks: call upsample_batch_to_divisible_size before"
        )
    return [sorted(row for row, _ in part.items) for part in _karmarkar_karp(costs, k_partitions, equal_size)]


@dataclass(order=True)
class _Part:
    """Rows that go to one rank; compared by total cost, then by number of rows."""

    total: int = 0
    num_rows: int = 0
    items: list[tuple[int, int]] = field(default_factory=list)  # (row, cost)

    def merged(self, other: _Part) -> _Part:
        return _Part(self.total + other.total, self.num_rows + other.num_rows, self.items + other.items)


class _Split:
    """One part for every rank, largest first. The most uneven split is the smallest, so that a heap gives it first."""

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = sorted(parts, reverse=True)
        self.spread = self.parts[0].total - self.parts[-1].total

    def __lt__(self, other: _Split) -> bool:
        if self.spread != other.spread:
            return self.spread > other.spread
        return self.parts[0] > other.parts[0]

    def merged(self, other: _Split) -> _Split:
        """The largest part of one with the smallest part of the other: their differences cancel."""
        return _Split([mine.merged(its) for mine, its in zip(self.parts, reversed(other.parts), strict=True)])


def _karmarkar_karp(costs: list[int], k: int, equal_size: bool) -> list[_Part]:
    ordered = [_Part(cost, 1, [(row, cost)]) for cost, row in sorted((cost, row) for row, cost in enumerate(costs))]
    width = k if equal_size else 1  # equal sizes: every split starts, and stays, with one row for each rank
    heap = []
    for start in range(0, len(ordered), width):
        some = ordered[start : start + width]
        heap.append(_Split(some + [_Part() for _ in range(k - len(some))]))
    heapq.heapify(heap)
    while len(heap) > 1:
        heapq.heappush(heap, heapq.heappop(heap).merged(heapq.heappop(heap)))
    return heap[0].parts


def log_seqlen_unbalance(seq_lens: Sequence[int], partitions: list[list[int]], prefix: str) -> dict[str, float]:
    """Tokens per rank before and after balancing: {prefix}/min, max, minmax_diff, balanced_min, balanced_max, mean.

    Before means: consecutive slices of len(seq_lens) // num_partitions rows, in the order the rows came.
    """
    width = len(seq_lens) // len(partitions)
    before = [sum(seq_lens[start : start + width]) for start in range(0, len(seq_lens), width)]
    after = [sum(seq_lens[row] for row in partition) for partition in partitions]
    return {
        f"{prefix}/min": min(before),
        f"{prefix}/max": max(before),
        f"{prefix}/minmax_diff": max(before) - min(before),
        f"{prefix}/balanced_min": min(after),
        f"{prefix}/balanced_max": max(after),
        f"{prefix}/mean": sum(before) / len(partitions),
    }
