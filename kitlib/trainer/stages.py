"""The stages between sampling and clearing, one public method each, to be called by `step_once` or cell by cell.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, the `_compute_*`, `_update_*` and `_balance_batch` methods of PPOTrainer.
Each takes a `KVBatchMeta` and gives one back. The tensors stay in the queue: a method pulls the fields it reads and
puts the fields it writes; what passes between the methods is keys and tags.

Differs from verl: metrics go to `self.metrics` instead of an argument, so that a cell needs only the batch. Left out
so far: reward model, reference policy, critic, rollout correction, distillation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict

from kitlib.algos import agg_loss, compute_advantage_for_multi_trajectories
from kitlib.config import Config
from kitlib.contract import StageRecord, stage
from kitlib.replay_buffer import ReplayBuffer
from kitlib.trainer.errors import BadRewardError
from kitlib.trainer.metrics import (
    compute_data_metrics,
    compute_throughput_metrics,
    compute_timing_metrics,
    rollout_probs_diff,
    staleness_metrics,
    turn_metrics,
)
from kitlib.trainer.rollout_dump import RolloutWriter
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, explain_get, padded
from kitlib.workers.balance import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance
from kitlib.workers.bridge import partition_of
from kitlib.workers.padding import response_from_nested, response_to_nested, upsample_batch_to_divisible_size
from kitlib.workers.worker_group import LocalWorkerGroup


class PPOStages:
    """Stage methods and what they need. `PPOTrainer` adds the loop around them."""

    config: Config
    tq: QueueProtocol
    tokenizer: Any
    actor_rollout_wg: LocalWorkerGroup
    replay_buffer: ReplayBuffer
    strict: bool
    global_steps: int
    metrics: dict[str, float]
    timing_raw: dict[str, float]
    epoch: int
    rollout_writer: RolloutWriter | None

    def on_stage(self, record: StageRecord) -> None:
        """Begin and end of every stage; the trainer keeps the records and tells its observers."""

    def missing_cells(self, batch: Any, fields: Sequence[str]) -> list[tuple[str, str]]:
        """Every (key, field) that the queue lacks; used by the contract in strict mode."""
        report = explain_get(self.tq, batch.keys, list(fields), partition_id=batch.partition_id)
        return [(key, field) for key in report.missing_keys for field in fields] + list(report.missing_cells)

    def pull(self, batch: KVBatchMeta, *fields: str) -> TensorDict:
        """The driver reads fields of a batch: one row a key, in the order of `batch.keys`."""
        return self.tq.kv_batch_get(keys=batch.keys, partition_id=partition_of(batch), select_fields=list(fields))

    def push(self, batch: KVBatchMeta, **fields: torch.Tensor) -> KVBatchMeta:
        """The driver writes fields of a batch, one row a key. The handle that comes back has no extra_info."""
        columns = TensorDict(fields, batch_size=len(batch))
        return self.tq.kv_batch_put(keys=batch.keys, partition_id=partition_of(batch), fields=columns)

    def tell_workers(self, batch: KVBatchMeta, **settings: Any) -> None:
        """Put settings of one call on the handle; the workers find them beside the fields."""
        temperature = self.config.actor_rollout_ref.rollout.temperature
        batch.extra_info = {**(batch.extra_info or {}), "temperature": temperature, **settings}

    @stage("sample")
    def sample(self, batch_size: int | None = None) -> KVBatchMeta:
        """Wait for `batch_size` finished groups (default `data.train_batch_size`) and take their rows.

        The handle carries the sampling temperature on to the workers, which score tokens at the same temperature.
        """
        batch, metrics = self.replay_buffer.sample(
            self.global_steps, "train", batch_size or self.config.data.train_batch_size
        )
        self.metrics.update(metrics)
        self.tell_workers(batch)
        return batch

    @stage("balance_batch")
    def balance_batch(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Pad the batch to a multiple of the mini-batch and order it so that every rank gets equal work.

        Rank r takes the r-th of dp_size equal slices of the new order. Metrics: global_seqlen/*.
        """
        dp_size = self.actor_rollout_wg.dp_size
        batch = upsample_batch_to_divisible_size(
            self.tq, batch, self.required_batch_multiple(dp_size), self.tokenizer.eos_token_id
        )
        seq_lens = torch.tensor([tag["seq_len"] for tag in batch.tags])  # [num_rows]
        partitions = get_seqlen_balanced_partitions(calculate_workload(seq_lens), k_partitions=dp_size, equal_size=True)
        batch.reorder([row for partition in partitions for row in partition])
        self.metrics.update(log_seqlen_unbalance(seq_lens.tolist(), partitions, "global_seqlen"))
        return batch

    def required_batch_multiple(self, dp_size: int) -> int:
        """The number of rows must be a multiple of this: whole mini-batches on every rank."""
        rollout_n = self.config.actor_rollout_ref.rollout.n
        return math.lcm(dp_size, self.config.actor_rollout_ref.actor.ppo_mini_batch_size * rollout_n)

    @stage("compute_old_log_prob")
    def compute_old_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write `old_log_probs` [R] and `entropy` [R]: each response token under the policy before this update.

        The worker scores whole sequences into `log_probs` and `entropy` [S]; the driver cuts out the response. With
        `algorithm.rollout_correction.bypass_mode` the rollout's own log-probs are taken and no model runs.
        Metrics: actor/entropy, training/rollout_probs_diff_*.
        """
        if self.config.algorithm.rollout_correction.bypass_mode:
            self.push(batch, old_log_probs=self.pull(batch, "rollout_log_probs")["rollout_log_probs"])
            return batch

        self.tell_workers(batch, calculate_entropy=True, compute_loss=False)
        self.actor_rollout_wg.compute_log_prob(batch)
        data = self.pull(batch, "log_probs", "entropy", "response_mask", "rollout_log_probs")
        mask = data["response_mask"]
        response = {
            "old_log_probs": response_from_nested(data["log_probs"], mask),
            "entropy": response_from_nested(data["entropy"], mask),
        }
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

    @stage("compute_advantage")
    def compute_advantage(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write `advantages` [R] and `returns` [R] from `rm_scores` [R], comparing the rows of a uid."""
        data = self.pull(batch, "uid", "response_mask", "rm_scores")
        mask = data["response_mask"]
        scores = padded(data["rm_scores"])  # [num_rows, max R]
        self._refuse_bad_rewards(batch, scores)
        algorithm = self.config.algorithm
        advantages, returns = compute_advantage_for_multi_trajectories(
            {"token_level_rewards": scores, "response_mask": padded(mask), "uid": data.get("uid").tolist()},
            batch.keys,
            algorithm.adv_estimator,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
            config=algorithm,
        )
        return self.push(
            batch, advantages=response_to_nested(advantages, mask), returns=response_to_nested(returns, mask)
        )

    def _refuse_bad_rewards(self, batch: KVBatchMeta, scores: torch.Tensor) -> None:
        """One NaN makes a whole group NaN without a word; stop here and name the rows instead."""
        bad = ~torch.isfinite(scores).all(dim=1)
        if bad.any():
            keys = [key for key, is_bad in zip(batch.keys, bad.tolist(), strict=True) if is_bad]
            raise BadRewardError(
                f"compute_advantage: rm_scores of {', '.join(keys[:8])} ({len(keys)} of {len(batch)} rows) is NaN or "
                "infinite; mend the reward function (reward.custom_reward_function) or the reward model"
            )

    @stage("update_actor")
    def update_actor(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Mini-batches of the clipped policy loss. Writes nothing to the queue; metrics actor/*."""
        actor = self.config.actor_rollout_ref.actor
        mini_batch_size = actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        self.tell_workers(
            batch,
            calculate_entropy=bool(actor.calculate_entropy or actor.entropy_coeff != 0),
            global_batch_size=mini_batch_size,
            mini_batch_size=mini_batch_size,
            epochs=actor.ppo_epochs,
            seed=actor.data_loader_seed,
            dataloader_kwargs={"shuffle": actor.shuffle},
        )
        self.metrics.update(self.actor_rollout_wg.update_actor(batch))
        return batch

    @stage("compute_metrics")
    def compute_metrics(self, batch: KVBatchMeta) -> dict[str, float]:
        """The numbers of the step under verl's names, from the real rows; throughput alone counts padding rows too."""
        real = batch.select_keys(
            [k for k, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        )
        data = self.pull(
            real, "prompts", "responses", "response_mask", "advantages", "returns", "rm_scores", "num_turns"
        )
        columns = {name: padded(data[name]) for name in ("response_mask", "advantages", "returns")}
        columns["token_level_scores"] = columns["token_level_rewards"] = padded(data["rm_scores"])
        columns["prompt_length"] = torch.tensor([tag["prompt_len"] for tag in real.tags])
        columns["response_length"] = torch.tensor([tag["response_len"] for tag in real.tags])
        longest = (int(columns["prompt_length"].max()), int(columns["response_length"].max()))
        num_tokens = sum(tag["seq_len"] for tag in batch.tags)
        num_response_tokens = sum(tag["response_len"] for tag in batch.tags)
        self.metrics |= {"training/global_step": self.global_steps, "training/epoch": self.epoch}
        self.metrics |= compute_data_metrics(columns, *longest)
        if "num_turns" in data:
            self.metrics |= turn_metrics(data.get("num_turns").tolist())
        self.metrics |= compute_timing_metrics(self.timing_raw, num_response_tokens, num_tokens)
        self.metrics |= compute_throughput_metrics(self.timing_raw, num_tokens, self.actor_rollout_wg.dp_size)
        self.metrics |= staleness_metrics(real.tags, self.global_steps)
        return self.metrics

    @stage("log_rollout_data")
    def log_rollout_data(self, batch: KVBatchMeta) -> None:
        """Write prompts, responses and scores of the step as JSON lines (padding rows included, as verl does)."""
        if self.rollout_writer is not None:
            data = self.pull(batch, "prompts", "responses", "rm_scores", "reward_model")
            self.rollout_writer.write(batch.keys, data, self.global_steps)

    @stage("clear")
    def clear(self, batch: KVBatchMeta) -> None:
        """Remove the rows of the step, padding rows included, from the queue."""
        self.tq.kv_clear(keys=batch.keys, partition_id=partition_of(batch))
