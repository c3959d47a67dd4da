"""The stages of the serial pipeline, one public method each, to be called by `step` or cell by cell.

verl 0.9.1: trainer/ppo/ray_trainer.py, RayPPOTrainer (_balance_batch, compute_advantage, _update_critic,
_update_actor) and trainer/ppo/reward.py, extract_reward. Every stage gets the DataProto with all columns.
What a model computes comes back as a DataProto of the new columns, and the caller joins it; what the driver computes
is written into the batch:

    batch = batch.union(trainer.compute_log_prob(batch))
    batch = trainer.compute_advantage(batch)

Beside kitlib/trainer/stages.py, where the same stages pull a few fields from the queue and push a few back. The tensor
functions and the workers are the same, so the same trajectories give the same advantages and the same update. One
difference is verl's own: the loss divides by the tokens that rejection sampling has left, in V1 by all.

Differs from verl: metrics go to `self.metrics`; with rollout_correction.bypass_mode the policy loss stays what the
config names. Left out: reward model, greedy baselines.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.algos import apply_kl_penalty, correct_rollout
from kitlib.algos.advantage import compute_advantage
from kitlib.algos.kl import KLController
from kitlib.trainer.errors import BadRewardError
from kitlib.trainer.v0.agent_loop import AgentLoopManager
from kitlib.trainer.v0.protocol import DataProto
from kitlib.trainer.v0.recording import recorded
from kitlib.trainer.v0.scoring import SerialScoring
from kitlib.workers.balance import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance


class SerialStages(SerialScoring):
    """Stage methods and what they need; PPOTrainerV0 adds the loop around them."""

    agent_loop_manager: AgentLoopManager
    checkpoint_manager: Any
    kl_ctrl_in_reward: KLController

    @recorded("gen")
    def generate_sequences(self, gen_batch: DataProto) -> DataProto:
        """Run a session for each row and wait for all of them; then the servers sleep.

        Writes prompts, responses, response_mask, input_ids, attention_mask, position_ids, rollout_log_probs,
        rm_scores and the objects of the sessions: see padding.collate_outputs.
        """
        output = self.agent_loop_manager.generate_sequences(gen_batch)
        if not gen_batch.meta_info.get("validate"):
            self.timing_raw.update(output.meta_info.pop("timing"))
            self.checkpoint_manager.sleep_replicas()
        return output

    @recorded("reward")
    def compute_reward(self, batch: DataProto) -> DataProto:
        """Write `token_level_scores` [response_length] into the batch: what the agent loop scored, `rm_scores`.

        BadRewardError names rows whose score is NaN or infinite.
        """
        scores = self._column(batch, "rm_scores", "the agent loop writes it if it has a reward function")
        bad = (~torch.isfinite(scores).all(dim=1)).nonzero().flatten().tolist()
        if bad:
            uids = ", ".join(dict.fromkeys(batch.non_tensor_batch["uid"][bad[:8]]))
            raise BadRewardError(
                f"compute_reward: the score of rows {bad[:8]} of uid {uids} is NaN or infinite "
                f"({len(bad)} of {len(batch)} rows); mend the reward function (reward.custom_reward_function)"
            )
        assert batch.batch is not None
        batch.batch["token_level_scores"] = scores
        return batch

    @recorded()
    def balance_batch(self, batch: DataProto) -> DataProto:
        """Order the rows, in place, so that every rank gets equal work: rank r takes the r-th of dp_size equal chunks.

        Inside a chunk rows go up in length and down again, so that micro-batches at both ends are short. No padding
        rows: a batch of the serial pipeline always has data.train_batch_size * rollout.n rows.
        """
        seq_lens = self._column(batch, "attention_mask").sum(dim=1)  # [num_rows]
        workload = calculate_workload(seq_lens)
        partitions = get_seqlen_balanced_partitions(workload, self.worker.dp_size, equal_size=True)
        for part in partitions:
            part.sort(key=lambda row: (int(workload[row]), row))
            part[:] = part[::2] + part[1::2][::-1]
        batch.reorder(torch.tensor([row for part in partitions for row in part]))
        self.metrics.update(log_seqlen_unbalance(seq_lens.tolist(), partitions, "global_seqlen"))
        return batch

    @recorded("adv")
    def compute_advantage(self, batch: DataProto) -> DataProto:
        """Write `token_level_rewards`, `advantages` and `returns` [response_length] into the batch, comparing the rows
        of a uid; with rollout correction also `response_mask` and, if asked for, `rollout_is_weights`."""
        rewards = self._column(batch, "token_level_scores", "compute_reward writes it")
        assert batch.batch is not None
        columns: dict[str, Any] = {**dict(batch.batch.items()), "token_level_rewards": rewards}
        columns |= self._apply_kl(columns)
        columns |= self._correct_rollout(columns)
        algorithm = self.config.algorithm
        columns["advantages"], columns["returns"] = compute_advantage(
            {**columns, "uid": batch.non_tensor_batch["uid"].tolist()},
            algorithm.adv_estimator,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
            config=algorithm,
        )
        batch.batch.update(columns)
        return batch

    def _apply_kl(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rewards less the KL to the reference, if `algorithm.use_kl_in_reward` is on."""
        if not self.config.algorithm.use_kl_in_reward:
            return {}
        rewards, metrics = apply_kl_penalty(
            columns["token_level_scores"],
            columns["response_mask"],
            columns["old_log_probs"],
            columns["ref_log_prob"],
            self.kl_ctrl_in_reward,
            self.config.algorithm.kl_penalty,
        )
        self.metrics |= metrics
        return {"token_level_rewards": rewards}

    def _correct_rollout(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """The mask after rejection and the importance weights; see kitlib.algos.rollout_correction."""
        settings = self.config.algorithm.rollout_correction
        if "rollout_log_probs" not in columns or settings.bypass_mode:
            return {}
        corrected = correct_rollout(
            columns["old_log_probs"], columns["rollout_log_probs"], columns["response_mask"], settings
        )
        self.metrics |= corrected.metrics
        written = {"response_mask": corrected.response_mask}
        return written if corrected.weights is None else {**written, "rollout_is_weights": corrected.weights}

    def updates_actor(self) -> bool:
        """False in the first steps, which train the critic alone (`trainer.critic_warmup`)."""
        return self.config.trainer.critic_warmup <= self.global_steps

    @recorded("update_critic")
    def update_critic(self, batch: DataProto) -> DataProto:
        """Mini-batches of the clipped value loss; metrics critic/*."""
        assert self.critic is not None, "no critic: the config asks for none"
        self._column(batch, "returns", "compute_advantage writes it")
        self.metrics.update(self.critic.update_critic(self._for_update(batch, self.config.critic)))
        return batch

    @recorded("update_actor")
    def update_actor(self, batch: DataProto) -> DataProto:
        """Mini-batches of the clipped policy loss; metrics actor/*."""
        self._column(batch, "advantages", "compute_advantage writes it")
        actor = self.config.actor_rollout_ref.actor
        with_entropy = bool(actor.calculate_entropy or actor.entropy_coeff != 0)
        self.metrics.update(self.worker.update_actor(self._for_update(batch, actor, calculate_entropy=with_entropy)))
        return batch

    def _for_update(self, batch: DataProto, section: Any, **settings: Any) -> TensorDict:
        """The batch and how to cut it into mini-batches; `section`: of the config, the actor's or the critic's."""
        mini_batch_size = section.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        return self._for_worker(
            batch,
            global_batch_size=mini_batch_size,
            mini_batch_size=mini_batch_size,
            epochs=section.ppo_epochs,
            seed=section.data_loader_seed,
            dataloader_kwargs={"shuffle": section.shuffle},
            **settings,
        )

    @recorded("update_weights")
    def update_weights(self) -> None:
        """Send the actor's weights to every server, which wakes up; what it generates now has version global_steps."""
        self.checkpoint_manager.update_weights(self.global_steps)
