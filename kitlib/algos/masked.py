"""Sums, means and variances over the elements that a mask selects.

verl 0.9.1: utils/torch_functional.py, masked_sum, masked_mean, masked_var, masked_whiten.

All take `values` and `mask` of one shape; the mask is bool or 0/1. Elements under a zero never count, whatever they
hold: NaN on a masked token does not reach the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kitlib.algos.errors import AlgoError

EMPTY = 1e-8
"""Added to token counts that may be zero, so that the mean over nothing is 0 and not NaN."""


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """sum_i m_i x_i over all elements, or along `dim`."""
    kept = torch.where(mask.bool(), values, 0.0) * mask
    return kept.sum() if dim is None else kept.sum(dim=dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """sum_i m_i x_i / (sum_i m_i + 1e-8); zero where the mask selects nothing."""
    count = mask.sum() if dim is None else mask.sum(dim=dim)
    return masked_sum(values, mask, dim) / (count + EMPTY)


def masked_var(values: Tensor, mask: Tensor) -> Tensor:
    """Unbiased variance over the selected elements: sum m (x - mean)^2 / (sum m - 1). Needs two elements."""
    count = mask.sum()
    if count < 2:
        raise AlgoError(
            f"variance over {int(count)} unmasked token(s), two are needed: look at response_mask before the advantage "
            "stage, it selects almost nothing"
        )
    centred = values - masked_mean(values, mask)
    return masked_mean(centred**2, mask) * (count / (count - 1))


def masked_whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) with the statistics of the selected elements; applied to all elements."""
    return (values - masked_mean(values, mask)) * torch.rsqrt(masked_var(values, mask) + EMPTY)
