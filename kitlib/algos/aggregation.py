"""From one loss value a token to one number: the four ways to average, with denominators of the whole mini-batch.

verl 0.9.1: trainer/ppo/core_algos.py, agg_loss. Left out: nothing.

A mini-batch is cut into micro-batches and spread over data-parallel ranks. If every piece divided by its own count,
long pieces would count less, and the gradient would depend on the cut. So a piece divides by the count of the whole
mini-batch, passed in as `batch_num_tokens` or `global_batch_size`; its results are added over micro-batches, and FSDP
averages over ranks, which `dp_size` undoes:

    gradient = mean over ranks of  sum over micro-batches of  dp_size * (local sum) / (global count)
             = (global sum) / (global count)
"""

from __future__ import annotations

from torch import Tensor

from kitlib.algos.errors import AlgoError
from kitlib.algos.masked import EMPTY, masked_sum

LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """Aggregate `loss_mat` [num_rows, j1] over `loss_mask` [num_rows, j1] to a scalar.

    With l_it the loss of token t of row i, m_it its mask, N tokens and B rows in the mini-batch:

        token-mean               sum_it m l / N                      every token weighs alike (DAPO, arXiv:2503.14476)
        token-sum                sum_it m l
        seq-mean-token-sum       sum_i (sum_t m l) / B               REINFORCE over whole sequences
        seq-mean-token-mean      sum_i (sum_t m l / sum_t m) / B     GRPO as published (arXiv:2402.03300)
        seq-mean-token-sum-norm  seq-mean-token-sum / L              Dr. GRPO (arXiv:2503.20783), L = loss_scale_factor

    N is `batch_num_tokens`, by default the tokens of this piece; B is `global_batch_size`, by default the rows of
    this piece with at least one token; L is `loss_scale_factor`, by default the padded width j1 of this piece (set
    actor.loss_scale_factor: a width changes with the batch). Raises AlgoError for an unknown mode, and for dp_size >
    1 without the global count that the mode divides by.
    """
    if loss_agg_mode == "token-mean":
        count = _global_count("batch_num_tokens", batch_num_tokens, loss_mask.sum(), dp_size)
        return masked_sum(loss_mat, loss_mask) / count * dp_size
    if loss_agg_mode == "token-sum":
        return masked_sum(loss_mat, loss_mask) * dp_size
    if loss_agg_mode not in LOSS_AGG_MODES:
        raise AlgoError(f"actor.loss_agg_mode={loss_agg_mode!r} is not one of {', '.join(LOSS_AGG_MODES)}")

    num_tokens = loss_mask.sum(dim=-1)  # [num_rows]
    row_loss = masked_sum(loss_mat, loss_mask, dim=-1)  # [num_rows]
    if loss_agg_mode == "seq-mean-token-mean":
        row_loss = row_loss / (num_tokens + EMPTY)
    count = _global_count("global_batch_size", global_batch_size, (num_tokens > 0).sum(), dp_size)
    loss = row_loss.sum() / count * dp_size
    if loss_agg_mode == "seq-mean-token-sum-norm":
        loss = loss / (loss_mask.shape[-1] if loss_scale_factor is None else loss_scale_factor)
    return loss


def _global_count(name: str, given: float | None, local: Tensor, dp_size: int) -> float | Tensor:
    if given is not None:
        return given
    if dp_size > 1:
        raise AlgoError(f"dp_size={dp_size} needs {name}: the count of one rank says nothing about the others")
    return local
