"""Mutations under which 09_update_actor must fail."""

from __future__ import annotations


def the_ratio_is_never_clipped() -> None:
    """The clip range is so wide that no ratio leaves it."""
    from kitlib.algos.policy_loss import LossConfig

    LossConfig.clip_range = lambda self: (1.0, 1e6)


def each_piece_divides_by_its_own_tokens() -> None:
    """The count of the whole mini-batch is ignored."""
    from kitlib.algos import aggregation

    aggregation._global_count = lambda name, given, local, dp_size: local


def a_backward_forgets_the_micro_batches_before() -> None:
    """Gradients of micro-batches replace each other instead of adding up."""
    from kitlib.workers.engine import FSDPEngine

    original = FSDPEngine.backward

    def backward(self: FSDPEngine, loss: object, is_last_micro_batch: bool) -> None:
        self.model.zero_grad(set_to_none=True)
        original(self, loss, is_last_micro_batch)

    FSDPEngine.backward = backward
