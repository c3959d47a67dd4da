"""The synchronous trainer: generate, then train, each waiting for the other.

verl 0.9.1: trainer/ppo/v1/trainer_sync.py, PPOTrainerSync. Every row is generated with the weights of the step
before, so the update is on policy. The servers sleep while the trainer computes: on one GPU they would hold the
memory it needs."""

from __future__ import annotations

from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.registry import register_trainer


@register_trainer("sync")
class PPOTrainerSync(PPOTrainer):
    """Trainer and servers take turns; no trajectory spans two weight versions."""

    trainer_mode = "sync"

    def on_init_end(self) -> None:
        self.update_weights()

    def on_sample_end(self) -> None:
        self.checkpoint_manager.sleep_replicas()

    def on_step_end(self) -> None:
        self.update_weights()  # wakes the servers up
