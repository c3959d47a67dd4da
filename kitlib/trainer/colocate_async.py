"""Trainer and servers share the devices, and generation runs ahead by a window of prompts.

verl 0.9.1: trainer/ppo/v1/trainer_colocate_async.py, PPOTrainerColocateAsync. `sample` takes what is finished and
does not wait for the rest: unfinished requests are aborted while the trainer computes, keep the tokens they have
(partial rollout), and go on with the new weights. A long response no longer holds the step up.

    generate ──sample──> abort, sleep ──> train ──> update weights, wake up, resume ──> generate ...
"""

from __future__ import annotations

from kitlib.replay_buffer import ReplayBufferAsync
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.registry import register_trainer


@register_trainer("colocate_async")
class PPOTrainerColocateAsync(PPOTrainer):
    """Generation pauses while the trainer computes, and resumes where it was."""

    trainer_mode = "colocate_async"
    replay_buffer_class = ReplayBufferAsync
    partial_rollout = True

    def on_init_end(self) -> None:
        self.update_weights()

    def on_train_begin(self) -> None:
        self.add_warmup_batches(self.config.trainer.v1.colocate_async.num_warmup_batches)

    def on_sample_end(self) -> None:
        self.checkpoint_manager.abort_replicas()
        self.checkpoint_manager.sleep_replicas()

    def on_step_end(self) -> None:
        self.update_weights()  # wakes the servers up
        self.checkpoint_manager.resume_generation_replicas()
