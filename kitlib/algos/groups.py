"""Statistics over the rows of one group: the answers to one prompt.

verl 0.9.1: the id2score loops of trainer/ppo/core_algos.py and utils/groupwise.py, group_mean_std.

`index` names the group of each row (the `uid` column: any hashable values, or an integer tensor). Sums run in
float64, so that a group of equal rewards has a spread of exactly zero: in float32 the mean of eight times 0.1 is not
0.1, and the rest, divided by a standard deviation of the same size, is an advantage made of rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kitlib.algos.errors import AlgoError


class Groups:
    """Group number of every row, in order of first appearance.

    `of_row` int64 [num_rows]; `sizes` float64 [num_groups]. Methods take `values` [num_rows] and give one number a row.
    """

    def __init__(self, index: Sequence[Any] | Tensor, num_rows: int, device: torch.device) -> None:
        names = index.tolist() if hasattr(index, "tolist") else list(index)
        if len(names) != num_rows:
            raise AlgoError(f"index names the groups of {len(names)} rows, but the batch has {num_rows}")
        number: dict[Any, int] = {}
        self.of_row = torch.tensor([number.setdefault(name, len(number)) for name in names], device=device)
        self.names = list(number)
        self.sizes = torch.bincount(self.of_row, minlength=len(number)).double()

    def size(self) -> Tensor:
        """Number of rows in the group of each row, float64 [num_rows]."""
        return self.sizes[self.of_row]

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the group of each row, float64 [num_rows]."""
        sums = torch.zeros_like(self.sizes).index_add_(0, self.of_row, values.double())
        return sums[self.of_row]

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the group of each row, float64 [num_rows]."""
        return self.sum(values) / self.size()

    def baseline_mean(self, values: Tensor) -> Tensor:
        """Mean over the group, but 0 for a group of one: a row is no baseline for itself."""
        return self.mean(values) * (self.size() > 1)

    def std(self, values: Tensor) -> Tensor:
        """Unbiased standard deviation over the group, and 1 for a group of one, float64 [num_rows]."""
        squares = self.sum((values.double() - self.mean(values)) ** 2)
        spread = (squares / (self.size() - 1).clamp(min=1)).sqrt()
        return torch.where(self.size() > 1, spread, 1.0)
