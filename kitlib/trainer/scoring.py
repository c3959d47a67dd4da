"""The stages that score what was sampled: reward model, old log-prob, reference, values.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_reward_colocate, _compute_old_log_prob,
_compute_ref_log_prob and _compute_values. The worker scores whole sequences; the driver cuts out the response.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict

from kitlib.algos import agg_loss
from kitlib.contract import needs, stage
from kitlib.reward.reward_model import RewardModel
from kitlib.trainer.driver import Driver
from kitlib.trainer.metrics import rollout_probs_diff
from kitlib.transfer_queue import KVBatchMeta, jagged, padded
from kitlib.workers.padding import response_from_nested
from kitlib.workers.worker_group import CriticWorkerGroup, LocalWorkerGroup, ReferenceWorkerGroup


class Scoring(Driver):
    """Log-probs of what was sampled, under the policy and under the reference, values, rewards of a model."""

    reward_model: RewardModel | None  # if it shares the trainer's devices
    actor_rollout_wg: LocalWorkerGroup
    ref_policy_wg: ReferenceWorkerGroup | None
    critic_wg: CriticWorkerGroup | None

    @stage("compute_reward_colocate")
    def compute_reward_colocate(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write `rm_scores` [R]: the reward model's number for the conversation, on the last response token.

        Runs with `reward.reward_model.enable` and without a pool of its own; otherwise the agent loop has scored.
        """
        assert self.reward_model is not None, "no reward model here: the config asks for none, or it has its own pool"
        data = self.pull(batch, "prompts", "responses", "raw_prompt")
        responses = [row.tolist() for row in data["responses"].unbind()]
        texts = self.tokenizer.batch_decode(responses, skip_special_tokens=True)
        scores = self.reward_model.score(data.get("raw_prompt").tolist(), texts)
        rows = [torch.zeros(len(row)) for row in responses]
        for row, score in zip(rows, scores, strict=True):
            row[-1:] = score
        return self.push(batch, rm_scores=jagged(rows))

    @stage("compute_old_log_prob")
    def compute_old_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write `old_log_probs` [R] and `entropy` [R]: each response token under the policy before this update.

        The worker scores whole sequences into `log_probs` and `entropy` [S]; the driver cuts out the response. The
        optimal token baselines also get `sum_pi_squared` [R]. With `algorithm.rollout_correction.bypass_mode` the
        rollout's own log-probs are taken and no model runs. Metrics: actor/entropy, training/rollout_probs_diff_*.
        """
        if self.config.algorithm.rollout_correction.bypass_mode:
            self.push(batch, old_log_probs=self.pull(batch, "rollout_log_probs")["rollout_log_probs"])
            return batch

        with_squares = "sum_pi_squared" in needs("compute_old_log_prob", self.config).writes
        self.tell_workers(batch, calculate_entropy=True, calculate_sum_pi_squared=with_squares, compute_loss=False)
        self.actor_rollout_wg.compute_log_prob(batch)
        data = self.pull(batch, "log_probs", "entropy", "sum_pi_squared", "response_mask", "rollout_log_probs")
        mask = data["response_mask"]
        names = {"log_probs": "old_log_probs", "entropy": "entropy", "sum_pi_squared": "sum_pi_squared"}
        response = {new: response_from_nested(data[name], mask) for name, new in names.items() if name in data}
        self._log_prob_metrics(response, data)
        return self.push(batch, **response)

    def _log_prob_metrics(self, response: dict[str, torch.Tensor], data: TensorDict) -> None:
        actor = self.config.actor_rollout_ref.actor
        mask = padded(data["response_mask"])  # [num_rows, max R]
        entropy = agg_loss(
            padded(response["entropy"]), mask, actor.loss_agg_mode, loss_scale_factor=actor.loss_scale_factor
        )
        self.metrics["actor/entropy"] = entropy.item()
        if "rollout_log_probs" in data:
            self.metrics.update(
                rollout_probs_diff(padded(data["rollout_log_probs"]), padded(response["old_log_probs"]), mask)
            )

    @stage("compute_ref_log_prob")
    def compute_ref_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write `ref_log_prob` [R]: each response token under the frozen reference policy.

        Runs when `actor.use_kl_loss` or `algorithm.use_kl_in_reward` is on. The worker overwrites `log_probs`.
        """
        assert self.ref_policy_wg is not None, "no reference policy: the config asks for no KL"
        self.tell_workers(batch, calculate_entropy=False, compute_loss=False)
        self.ref_policy_wg.compute_ref_log_prob(batch)
        data = self.pull(batch, "log_probs", "response_mask")
        self.push(batch, ref_log_prob=response_from_nested(data["log_probs"], data["response_mask"]))
        return batch

    @stage("compute_values")
    def compute_values(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write `values` [R]: what the critic expects before each response token.

        Runs with a critic (`algorithm.adv_estimator=gae`, or `critic.enable`). The worker writes `values` [S]; the
        driver cuts out the response under the same name.
        """
        assert self.critic_wg is not None, "no critic: the config asks for none"
        self.tell_workers(batch, compute_loss=False)
        self.critic_wg.compute_values(batch)
        data = self.pull(batch, "values", "response_mask")
        self.push(batch, values=response_from_nested(data["values"], data["response_mask"]))
        return batch
