"""The numbers of a batch as padded columns, and the same tokens scored by the actor under other settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from kitlib.trainer.metrics import rollout_probs_diff
from kitlib.transfer_queue import KVBatchMeta, padded
from kitlib.workers.bridge import fetch
from kitlib.workers.padding import response_from_nested
from kitlib.workers.rows import Rows

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


@dataclass(frozen=True)
class Agreement:
    """What the server said of each token when it sampled it, and what the trainer says; all [num_rows, max R]."""

    rollout_log_probs: Tensor
    old_log_probs: Tensor
    response_mask: Tensor

    def difference(self) -> Tensor:
        """|difference of probabilities| on tokens of the model, 0 elsewhere, [num_rows, max R]."""
        return (self.rollout_log_probs.exp() - self.old_log_probs.exp()).abs() * self.response_mask

    def numbers(self) -> dict[str, float]:
        """training/rollout_probs_diff_* and the correlation, as the stage computes them."""
        return rollout_probs_diff(self.rollout_log_probs, self.old_log_probs, self.response_mask)


def agreement(trainer: PPOTrainer, batch: KVBatchMeta) -> Agreement:
    """The log-probs of the server and of the trainer from the queue, rows in the order of the batch."""
    names = ("rollout_log_probs", "old_log_probs", "response_mask")
    data = trainer.pull(batch, *names)
    return Agreement(*(padded(data[name]) for name in names))


def log_probs_with(
    trainer: PPOTrainer,
    batch: KVBatchMeta,
    *,
    temperature: float = 1.0,
    micro_batch_size: int | None = None,
    max_token_len: int | None = None,
) -> tuple[Tensor, int]:
    """The actor's log-probs of the response tokens [num_rows, max R], and the number of forward passes.

    micro_batch_size: rows a forward pass; max_token_len: tokens a forward pass, padding counted; neither: all at
    once. Reads input_ids, position_ids, prompts, responses; writes nothing to the queue.
    """
    worker = trainer.actor_rollout_wg.worker
    data = fetch(trainer.tq, worker.compute_log_prob, batch)
    rows = Rows.from_tensordict(data, (), worker.engine.device)
    pieces = worker.micro_batches(rows, micro_batch_size, max_token_len)
    scored = worker.score(rows, pieces, temperature, with_entropy=False)
    return padded(response_from_nested(scored["log_probs"], data["responses"])), len(pieces)
