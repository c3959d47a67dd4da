"""The advantage stage: from rewards to one advantage per token.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_advantage. In order:

    rm_scores ──(use_kl_in_reward: minus beta * KL)──> rewards
    response_mask ──(rollout correction: rejected tokens cleared)──> mask, importance weights
    rewards, mask, uid, values, ... ──(adv_estimator)──> advantages, returns

Rollout correction runs whenever rollout_log_probs are there and bypass_mode is off; with all its settings null it
writes the mask as it was and gives the metrics rollout_corr/*.

Differs from verl, whose V1 trainer fetches seven fields whatever the estimator: here an estimator gets each field that
it names as a parameter (see kitlib/algos/advantage.py), and gdpo the parts of the reward. So remax, gdpo and the
optimal token baselines work, and an estimator of your own may ask for any field of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from kitlib.algos import apply_kl_penalty, compute_advantage_for_multi_trajectories, correct_rollout
from kitlib.algos.advantage import estimator_fields
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
        estimator = self.config.algorithm.adv_estimator
        fields = dict.fromkeys([*needs("compute_advantage", self.config).reads, *estimator_fields(estimator)])
        data = self.pull(batch, *fields)
        mask = data["response_mask"]  # jagged [num_rows, R]
        columns = padded_columns(data)
        self._refuse_bad_rewards(batch, columns["rm_scores"])
        written = self._apply_kl(columns) | self._correct_rollout(columns)
        uids, extras = data.get("uid").tolist(), objects(data, "extra_fields")
        advantages, returns = estimate(self.config.algorithm, batch.keys, columns, uids, extras)
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
        if corrected.weights is not None:
            columns["rollout_is_weights"] = written["rollout_is_weights"] = corrected.weights
        return written

    def _refuse_bad_rewards(self, batch: KVBatchMeta, scores: torch.Tensor) -> None:
        """One NaN makes a whole group NaN without a word; stop here and name the rows instead."""
        bad = ~torch.isfinite(scores).all(dim=1)
        if bad.any():
            keys = [key for key, is_bad in zip(batch.keys, bad.tolist(), strict=True) if is_bad]
            raise BadRewardError(
                f"compute_advantage: rm_scores of {', '.join(keys[:8])} ({len(keys)} of {len(batch)} rows) is NaN or "
                "infinite; mend the reward function (reward.custom_reward_function) or the reward model"
            )


def estimate(
    algorithm: Any,
    keys: Sequence[str],
    columns: Mapping[str, torch.Tensor],
    uids: Sequence[Any],
    extras: Sequence[Any] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(advantages, returns), both [num_rows, max R], of padded columns.

    algorithm: the config section. uids, extras: the fields uid and extra_fields, one a row.
    """
    parts = _reward_parts(algorithm.gdpo_reward_keys or [], keys, extras) if extras is not None else {}
    return compute_advantage_for_multi_trajectories(
        {**columns, **parts, "uid": list(uids)},
        keys,
        algorithm.adv_estimator,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        config=algorithm,
    )


def _reward_parts(names: Sequence[str], keys: Sequence[str], extras: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The entries of reward_extra_info that gdpo normalises one by one, each [num_rows]."""
    infos = [extra.get("reward_extra_info", {}) for extra in extras]
    for name in names:
        lacking = [key for key, info in zip(keys, infos, strict=True) if name not in info]
        if lacking:
            raise BadRewardError(
                f"algorithm.gdpo_reward_keys names {name!r}, which the reward function did not return for "
                f"{', '.join(lacking[:8])} ({len(lacking)} of {len(keys)} rows): it has to return a dict with it"
            )
    return {name: torch.tensor([float(info[name]) for info in infos]) for name in names}


def objects(data: TensorDict, name: str) -> list[Any] | None:
    """A column of non-tensors as a list, None if it is not there."""
    return data.get(name).tolist() if name in data else None


def padded_columns(data: TensorDict) -> dict[str, torch.Tensor]:
    """The tensors of a batch: jagged ones padded to [num_rows, max R], scalars as they are, [num_rows]."""
    tensors = {str(name): data[name] for name in data.keys() if isinstance(data.get(name), torch.Tensor)}
    return {name: padded(column) if column.is_nested else column for name, column in tensors.items()}
