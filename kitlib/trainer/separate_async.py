"""Trainer and servers have devices of their own and never wait for each other, as far as the samples reach.

verl 0.9.1: trainer/ppo/v1/trainer_separate_async.py, PPOTrainerSeparateAsync. A step makes `parameter_sync_step`
updates of one mini-batch each, then the servers get the new weights; requests in flight keep their tokens and go on
(partial rollout).

    servers   generate generate generate | generate generate ...
    trainer   sample update, sample update, .. | sync | sample update ...

All updates of a step share one old policy: its weights are kept on the CPU and put back for `compute_old_log_prob`, so
that the clipped ratio of the last update has the same meaning as that of the first.

With trainer.v1.separate_async.hybrid_rollout.enable_switch the trainer's devices help generating while there is too
little to train on (hybrid.py).
"""

from __future__ import annotations

import time
from typing import Any

from kitlib.replay_buffer import ReplayBufferAsync
from kitlib.rollout import CheckpointEngineManager, LLMServerManager
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.errors import TrainerError
from kitlib.trainer.hybrid import HybridRollout, SwitchPolicy
from kitlib.trainer.registry import register_trainer
from kitlib.transfer_queue import KVBatchMeta

OLD_POLICY, CURRENT_POLICY = "old policy", "current policy"
IDLE_SECONDS = 2.0  # a step that waited longer for samples had idle time (the poll interval of the sampler in verl)


@register_trainer("separate_async")
class PPOTrainerSeparateAsync(PPOTrainer):
    """Generation never pauses."""

    trainer_mode = "separate_async"
    replay_buffer_class = ReplayBufferAsync
    partial_rollout = True

    hybrid: HybridRollout | None = None

    def init(self) -> None:
        self.parameter_sync_step = self.config.trainer.v1.separate_async.parameter_sync_step
        super().init()

    def close(self) -> None:
        if self.hybrid is not None:
            self.hybrid.close()
            self.hybrid = None
        super().close()

    def on_init_end(self) -> None:
        if self.config.trainer.v1.separate_async.hybrid_rollout.enable_switch:
            self.hybrid = self._build_hybrid()
            if self.restored_mode_state:
                self.hybrid.policy.load_state_dict(self.restored_mode_state)
        self.update_weights()

    def mode_state(self) -> dict[str, Any]:
        return {} if self.hybrid is None else self.hybrid.policy.state_dict()

    def on_train_begin(self) -> None:
        self.add_warmup_batches(self.config.trainer.v1.separate_async.num_warmup_batches)

    def on_step_begin(self) -> None:
        self._wait_seconds, self._num_waited = 0.0, 0
        hybrid = self.hybrid
        if hybrid is not None and hybrid.is_lent and self._num_sampleable(self.global_steps) >= hybrid.policy.threshold:
            self._take_back()

    def prepare_step(self) -> None:
        super().prepare_step()
        if self.hybrid is not None and self.hybrid.is_lent:
            began = time.perf_counter()
            self._sampler().wait_for_sampleable(self.global_steps, "train", self.hybrid.policy.threshold)
            self.timing_raw["switch_wait"] = time.perf_counter() - began
            self._take_back()

    def on_sample_begin(self) -> None:
        if self.hybrid is not None:
            mini_batch_size = self.config.data.train_batch_size // self.parameter_sync_step
            self._num_waited += max(0, mini_batch_size - self._num_sampleable(self.global_steps))
        self._sample_began = time.perf_counter()

    def on_sample_end(self) -> None:
        self._wait_seconds += time.perf_counter() - self._sample_began

    def on_step_end(self) -> None:
        lend = self.hybrid is not None and self._decides_to_lend(self.hybrid)
        self.update_weights()  # aborts, updates and resumes
        if lend and self.hybrid is not None:
            self.timing_raw["switch_to_rollout"] = self.hybrid.lend(self.global_steps)

    def _decides_to_lend(self, hybrid: HybridRollout) -> bool:
        policy, ratio, had_idle = hybrid.policy, hybrid.policy.ratio, self._wait_seconds > IDLE_SECONDS
        policy.note_wait(self._wait_seconds, self._num_waited)
        if policy.config.adaptive_switch_threshold:
            policy.adapt(had_idle)
        is_last = self.global_steps >= self.total_training_steps
        lend, metrics = policy.decide(self._num_sampleable(self.global_steps + 1), is_last)
        self.metrics |= metrics
        self.metrics["separate_async/switch/threshold_ratio"] = ratio
        self.metrics["separate_async/switch/wait_samples"] = self._num_waited
        self.metrics["separate_async/switch/idle"] = float(had_idle)
        return lend

    def _take_back(self) -> None:
        assert self.hybrid is not None
        self.timing_raw["switch_to_trainer"] = self.hybrid.take_back()

    def _sampler(self) -> ReplayBufferAsync:
        if not isinstance(self.replay_buffer, ReplayBufferAsync):
            raise TrainerError(
                f"{type(self.replay_buffer).__name__} cannot be used with hybrid_rollout.enable_switch: the sampler "
                "must be a ReplayBufferAsync (wait_for_sampleable, get_sampleable_count)"
            )
        return self.replay_buffer

    def _num_sampleable(self, global_steps: int) -> int:
        return self._sampler().get_sampleable_count(global_steps, "train")

    def _build_hybrid(self) -> HybridRollout:
        """Servers on the trainer's devices, asleep until they are lent."""
        assert self.parts is not None
        num_own = len(self.parts.llm_server_manager.get_replicas())
        servers = LLMServerManager(self.config, self.tokenizer)
        manager = CheckpointEngineManager(self.actor_rollout_wg, servers.get_replicas())
        manager.sleep_replicas()
        policy = SwitchPolicy(
            self.config.trainer.v1.separate_async.hybrid_rollout,
            self.config.data.train_batch_size,
            self.parameter_sync_step,
            scaling_factor=(num_own + len(servers.get_replicas())) / num_own,
        )
        return HybridRollout(policy, servers, manager, self.parts.llm_server_manager.global_load_balancer)

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
