"""Trainer and servers have devices of their own and never wait for each other, as far as the samples reach.

verl 0.9.1: trainer/ppo/v1/trainer_separate_async.py, PPOTrainerSeparateAsync. A step makes `parameter_sync_step`
updates of one mini-batch each, then the servers get the new weights; requests in flight keep their tokens and go on
(partial rollout).

    servers   generate generate generate | generate generate ...
    trainer   sample update, sample update, .. | sync | sample update ...

All updates of a step share one old policy: its weights are kept on the CPU and put back for `compute_old_log_prob`, so
that the clipped ratio of the last update has the same meaning as that of the first.

Left out: hybrid rollout (trainer devices that help generating while they wait); one process has no devices to lend.
"""

from __future__ import annotations

from kitlib.replay_buffer import ReplayBufferAsync
from kitlib.rollout import FullyAsyncLLMServerClient, LLMServerClient
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.registry import register_trainer
from kitlib.transfer_queue import KVBatchMeta

OLD_POLICY, CURRENT_POLICY = "old policy", "current policy"


@register_trainer("separate_async")
class PPOTrainerSeparateAsync(PPOTrainer):
    """Generation never pauses."""

    trainer_mode = "separate_async"
    replay_buffer_class = ReplayBufferAsync

    def init(self) -> None:
        self.parameter_sync_step = self.config.trainer.v1.separate_async.parameter_sync_step
        super().init()

    def get_llm_client(self) -> LLMServerClient:
        assert self.parts is not None, "call init() first"
        return self.parts.llm_server_manager.get_client(
            FullyAsyncLLMServerClient, response_length=self.config.actor_rollout_ref.rollout.response_length
        )

    def on_init_end(self) -> None:
        self.update_weights()

    def on_train_begin(self) -> None:
        self.add_warmup_batches(self.config.trainer.v1.separate_async.num_warmup_batches)

    def on_step_end(self) -> None:
        self.update_weights()  # aborts, updates and resumes

    def compute_old_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        """As in the base class, under the policy at the begin of the step."""
        if self.config.algorithm.rollout_correction.bypass_mode:
            return super().compute_old_log_prob(batch)
        if self.local_trigger_step == 0:
            self.actor_rollout_wg.save_weights(OLD_POLICY)
            return super().compute_old_log_prob(batch)
        self.actor_rollout_wg.save_weights(CURRENT_POLICY)
        self.actor_rollout_wg.restore_weights(OLD_POLICY)
        try:
            return super().compute_old_log_prob(batch)
        finally:
            self.actor_rollout_wg.restore_weights(CURRENT_POLICY)
