"""A few steps of training, and how far trainer and server are apart on each row."""

from __future__ import annotations

from typing import Any

from kitlib.lessons.rollout import wait_for_rollout
from kitlib.trainer.base import PPOTrainer
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol
from kitlib.workers.bridge import partition_of


def run_steps(trainer: PPOTrainer, num_steps: int) -> list[dict[str, Any]]:
    """Train; returns the metrics of each update. In separate_async a step makes `parameter_sync_step` of them.

    As `PPOTrainer.fit` (without validation and checkpoints), but each step waits until nothing is in flight before it
    samples: which groups are there does then not depend on how fast the machine is. The metrics of several updates of a
    step are not averaged.
    """
    said = []
    trainer.global_steps = 1
    trainer.on_train_begin()
    for step in range(1, num_steps + 1):
        trainer.begin_step(step)
        trainer.prepare_step()
        wait_for_rollout(trainer)
        updates = [_update(trainer, number) for number in range(trainer.parameter_sync_step)]
        trainer.end_step()
        for batch, trainer.metrics in updates:
            said.append(dict(trainer.compute_metrics(batch)))
            trainer.clear(batch)
    wait_for_rollout(trainer)
    return said


def _update(trainer: PPOTrainer, number: int) -> tuple[KVBatchMeta, dict[str, Any]]:
    """The update of a step with that number, from 0: its batch and its metrics."""
    trainer.local_trigger_step, trainer.metrics = number, {}
    batch = trainer.step_once(trainer.config.data.train_batch_size // trainer.parameter_sync_step)
    return batch, trainer.metrics


def largest_difference(tq: QueueProtocol, batch: KVBatchMeta) -> dict[str, float]:
    """Key -> the largest |old_log_probs - rollout_log_probs| on a token that the model wrote."""
    names = ["old_log_probs", "rollout_log_probs", "response_mask"]
    data = tq.kv_batch_get(batch.keys, partition_of(batch), names)
    columns = zip(*(data[name].unbind() for name in names), strict=True)
    return {
        key: float(((old - rollout).abs() * mask).max())
        for key, (old, rollout, mask) in zip(batch.keys, columns, strict=True)
    }
