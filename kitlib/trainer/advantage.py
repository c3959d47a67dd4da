"""The advantage stage: from rewards to one advantage per token.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_advantage. In order:

    rm_scores ──(use_kl_in_reward: minus beta * KL)──> rewards
    response_mask ──(rollout correction: rejected tokens cleared)──> mask, importance weights
    rewards, mask, uid, values ──(adv_estimator)──> advantages, returns

Rollout correction runs whenever rollout_log_probs are there and bypass_mode is off; with all its settings null it
writes the mask as it was and gives the metrics rollout_corr/*.
"""

from __future__ import annotations

import torch

from kitlib.algos import apply_kl_penalty, compute_advantage_for_multi_trajectories, correct_rollout
from kitlib.algos.kl import KLController
from kitlib.contract import needs, stage
from kitlib.trainer.driver import Driver
from kitlib.trainer.errors import BadRewardError
from kitlib.transfer_queue import KVBatchMeta, padded
from kitlib.workers.padding import response_to_nested


class Advantage(Driver):
    """Compares the rows of a group."""

    kl_ctrl_in_reward: KLController

    @stage("compute_advantage")
    def compute_advantage(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write `advantages` [R] and `returns` [R] from `rm_scores` [R], comparing the rows of a uid.

        Also writes token_level_rewards with KL in the reward, response_mask with rollout correction, and
        rollout_is_weights if importance weights are on.
        """
        data = self.pull(batch, *needs("compute_advantage", self.config).reads)
        mask = data["response_mask"]  # jagged [num_rows, R]
        columns = {str(name): padded(data[name]) for name in data.keys() if name != "uid"}  # [num_rows, max R]
        self._refuse_bad_rewards(batch, columns["rm_scores"])
        written = self._apply_kl(columns) | self._correct_rollout(columns)
        advantages, returns = compute_advantage_for_multi_trajectories(
            {**columns, "uid": data.get("uid").tolist()},
            batch.keys,
            self.config.algorithm.adv_estimator,
            gamma=self.config.algorithm.gamma,
            lam=self.config.algorithm.lam,
            norm_adv_by_std_in_grpo=self.config.algorithm.norm_adv_by_std_in_grpo,
            config=self.config.algorithm,
        )
        written |= {"advantages": advantages, "returns": returns}
        return self.push(batch, **{name: response_to_nested(column, mask) for name, column in written.items()})

    def _apply_kl(self, columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rewards from scores; a new column only if the KL changes them."""
        columns["token_level_scores"] = columns["token_level_rewards"] = columns["rm_scores"]
        if not self.config.algorithm.use_kl_in_reward:
            return {}
        rewards, metrics = apply_kl_penalty(
            columns["rm_scores"],
            columns["response_mask"],
            columns["old_log_probs"],
            columns["ref_log_prob"],
            self.kl_ctrl_in_reward,
            self.config.algorithm.kl_penalty,
        )
        self.metrics |= metrics
        columns["token_level_rewards"] = rewards
        return {"token_level_rewards": rewards}

    def _correct_rollout(self, columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The mask after rejection and the importance weights; see kitlib.algos.rollout_correction."""
        settings = self.config.algorithm.rollout_correction
        if "rollout_log_probs" not in columns or settings.bypass_mode:
            return {}
        corrected = correct_rollout(
            columns["old_log_probs"], columns["rollout_log_probs"], columns["response_mask"], settings
        )
        self.metrics |= corrected.metrics
        columns["response_mask"] = corrected.response_mask
        written = {"response_mask": corrected.response_mask}
        return written if corrected.weights is None else {**written, "rollout_is_weights": corrected.weights}

    def _refuse_bad_rewards(self, batch: KVBatchMeta, scores: torch.Tensor) -> None:
        """One NaN makes a whole group NaN without a word; stop here and name the rows instead."""
        bad = ~torch.isfinite(scores).all(dim=1)
        if bad.any():
            keys = [key for key, is_bad in zip(batch.keys, bad.tolist(), strict=True) if is_bad]
            raise BadRewardError(
                f"compute_advantage: rm_scores of {', '.join(keys[:8])} ({len(keys)} of {len(batch)} rows) is NaN or "
                "infinite; mend the reward function (reward.custom_reward_function) or the reward model"
            )
