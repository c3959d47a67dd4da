"""What an update of the actor did to each token: its new log-prob, and its share of the pull.

verl 0.9.1 has no counterpart: the log-probs of an update never leave it. With `kitlib.record_update` the actor writes

    update_log_probs   log pi(token) in the last forward pass of the update that saw the row; against old_log_probs it
                       makes the ratio that was clipped
    loss_share         -(d policy loss / d log-prob), divided by the sum of its absolute values over the update

A share above 0 makes the token more likely, one below 0 less. It is 0 where the loss is flat: the ratio is clipped, or
the token is masked. The derivative tells this for every policy loss alike. Entropy bonus and KL are not in it. A row
that the update did not take (PF-PPO draws some) has a log-prob of NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kitlib.transfer_queue import jagged
from kitlib.workers.engine import FSDPEngine
from kitlib.workers.rows import Rows

EMPTY = 1e-30  # below any pull: an update in which every advantage is 0 has shares of 0


class UpdateRecord:
    """Fills the two columns while the micro-batches of an update pass; a row that passes again counts anew."""

    def __init__(self, rows: Rows) -> None:
        self._response_lens = rows.response_lens
        shape = (len(rows), int(rows.response_lens.max()))
        self._log_probs = torch.full(shape, float("nan"), device=rows.response_lens.device)  # [num_rows, max R]
        self._pull = torch.zeros_like(self._log_probs)

    def add(self, micro: Rows, log_prob: Tensor, policy_loss: Tensor | None) -> None:
        """Take in one micro-batch: its log-probs [num_rows, max R] and the loss that was made of them."""
        assert policy_loss is not None
        (grad,) = torch.autograd.grad(policy_loss, log_prob, retain_graph=True)
        width = log_prob.shape[1]
        self._log_probs[micro.numbers, :width] = log_prob.detach()
        self._pull[micro.numbers, :width] = -grad

    def columns(self, engine: FSDPEngine) -> dict[str, Tensor]:
        """The two fields, jagged float32 [R], on the CPU. A collective: shares are of all ranks' rows."""
        total = engine.all_reduce(self._pull.abs().sum())
        share = self._pull / total.clamp(min=EMPTY)
        return {"update_log_probs": self._to_jagged(self._log_probs), "loss_share": self._to_jagged(share)}

    def _to_jagged(self, column: Tensor) -> Tensor:
        return jagged([row[:num] for row, num in zip(column.cpu(), self._response_lens.tolist(), strict=True)])
