"""The critic's loss.

verl 0.9.1: trainer/ppo/core_algos.py, compute_value_loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kitlib.algos.aggregation import agg_loss
from kitlib.algos.masked import masked_mean


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
    **global_batch_info: Any,
) -> tuple[Tensor, Tensor]:
    """Squared error of the values, clipped around the values before the update; all tensors [num_rows, j1].

        l = max((V - G)^2, (clip(V, V_old - c, V_old + c) - G)^2) / 2        c = critic.cliprange_value

    the value clipping of the PPO reference code (see arXiv:2005.12729): a prediction gains nothing by
    leaving the range. `vpreds` V, `values` V_old, `returns` G; `global_batch_info` as in agg_loss.

    Returns (loss, share of unmasked tokens whose clipped error was the larger one).
    """
    clipped = torch.maximum(torch.minimum(vpreds, values + cliprange_value), values - cliprange_value)
    error, clipped_error = (vpreds - returns) ** 2, (clipped - returns) ** 2
    losses = torch.maximum(error, clipped_error)
    loss = 0.5 * agg_loss(losses, response_mask, loss_agg_mode, **global_batch_info)
    return loss, masked_mean((clipped_error > error).float(), response_mask)
