"""The stages between sampling and clearing, one public method each, to be called by `step_once` or cell by cell.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, the `_compute_*`, `_update_*` and `_balance_batch` methods of PPOTrainer.
Each takes a `KVBatchMeta` and gives one back. The tensors stay in the queue: a method pulls the fields it reads and
puts the fields it writes; what passes between the methods is keys and tags.

    driver.py     pull, push, tell the workers        scoring.py    reward model, old log-prob, reference, values
    advantage.py  advantage                           here          sample, balance, updates, metrics, dump, clear

Differs from verl: metrics go to `self.metrics` instead of an argument, so that a cell needs only the batch. Left out:
distillation.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kitlib.agent_loop import AgentLoopManagerTQ
from kitlib.algos.pf_ppo import pf_ppo_rows
from kitlib.contract import needs, stage
from kitlib.replay_buffer import ReplayBuffer
from kitlib.trainer.advantage import Advantage
from kitlib.trainer.metrics import (
    compute_data_metrics,
    compute_throughput_metrics,
    compute_timing_metrics,
    staleness_metrics,
    turn_metrics,
)
from kitlib.trainer.rollout_dump import RolloutWriter
from kitlib.trainer.scoring import Scoring
from kitlib.transfer_queue import KVBatchMeta, padded
from kitlib.workers.balance import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance
from kitlib.workers.bridge import partition_of
from kitlib.workers.padding import upsample_batch_to_divisible_size


class PPOStages(Scoring, Advantage):
    """Stage methods and what they need. `PPOTrainer` adds the loop around them."""

    agent_loop_manager: AgentLoopManagerTQ
    replay_buffer: ReplayBuffer
    epoch: int
    local_trigger_step: int
    rollout_writer: RolloutWriter | None

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
        """The number of rows must be a multiple of this: whole mini-batches, of all that is updated, on every rank."""
        sizes = [self.config.actor_rollout_ref.actor.ppo_mini_batch_size] if self.updates_actor() else []
        if self.critic_wg is not None:
            sizes.append(self.config.critic.ppo_mini_batch_size)
        return math.lcm(dp_size, *(size * self.config.actor_rollout_ref.rollout.n for size in sizes))

    def updates_actor(self) -> bool:
        """False in the first steps, which train the critic alone (`trainer.critic_warmup`)."""
        return self.config.trainer.critic_warmup <= self.global_steps

    @stage("update_critic")
    def update_critic(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Mini-batches of the clipped value loss. Writes nothing to the queue; metrics critic/*."""
        assert self.critic_wg is not None, "no critic: the config asks for none"
        self._tell_update(batch, self.config.critic)
        self.metrics.update(self.critic_wg.update_critic(batch))
        return batch

    @stage("update_actor")
    def update_actor(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Mini-batches of the clipped policy loss; metrics actor/*.

        Writes nothing to the queue, or with `kitlib.record_update` what the update did to each token.
        """
        actor, record = self.config.actor_rollout_ref.actor, self.config.kitlib.record_update
        with_entropy = bool(actor.calculate_entropy or actor.entropy_coeff != 0)
        self._tell_update(batch, actor, calculate_entropy=with_entropy, record_update=record)
        self.metrics.update(self.actor_rollout_wg.update_actor(batch))
        return batch

    def rows_to_train(self, batch: KVBatchMeta) -> list[int] | None:
        """With `algorithm.use_pf_ppo`: the rows of the batch that an update shall take, drawn by their reward.

        As many as there are, some of them several times; padding rows stay where they are. Actor and critic draw the
        same rows, and a drawn row brings all of its fields. (verl pairs them wrongly: see kitlib/algos/pf_ppo.py.)
        Differs: any estimator may be used, where verl draws with gae only.
        """
        algorithm = self.config.algorithm
        if not algorithm.use_pf_ppo:
            return None
        real = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding")]
        scores = padded(self.pull(batch, "rm_scores")["rm_scores"]).sum(dim=1)[real]  # [num real rows]
        seed = hash((self.config.kitlib.seed, self.global_steps, self.local_trigger_step)) % 2**63
        generator = torch.Generator().manual_seed(seed)
        drawn = pf_ppo_rows(scores, algorithm.pf_ppo.reweight_method, algorithm.pf_ppo.weight_pow, generator)
        rows = list(range(len(batch)))
        for row, source in zip(real, drawn.tolist(), strict=True):
            rows[row] = real[source]
        return rows

    def _tell_update(self, batch: KVBatchMeta, settings: Any, **more: Any) -> None:
        """What an update has to know: sizes in rows, passes, order, and which rows if not all."""
        if (drawn := self.rows_to_train(batch)) is not None:
            more["rows_to_train"] = drawn
        mini_batch_size = settings.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        self.tell_workers(
            batch,
            global_batch_size=mini_batch_size,
            mini_batch_size=mini_batch_size,
            epochs=settings.ppo_epochs,
            seed=settings.data_loader_seed,
            dataloader_kwargs={"shuffle": settings.shuffle},
            **more,
        )

    @stage("compute_metrics")
    def compute_metrics(self, batch: KVBatchMeta) -> dict[str, float]:
        """The numbers of the step under verl's names, from the real rows; throughput alone counts padding rows too."""
        real = batch.select_keys(
            [k for k, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        )
        spec = needs("compute_metrics", self.config)
        data = self.pull(real, *spec.reads, *spec.optional)
        names = ("response_mask", "advantages", "returns", "rm_scores", "token_level_rewards", "values")
        columns = {name: padded(data[name]) for name in names if name in data}  # [num_rows, max R]
        columns["token_level_scores"] = columns.pop("rm_scores")
        columns.setdefault("token_level_rewards", columns["token_level_scores"])
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
        self.metrics |= self.agent_loop_manager.take_reward_failures()
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
