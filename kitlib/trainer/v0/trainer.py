"""The V0 trainer: one DataProto goes from stage to stage, and every stage waits for the one before.

verl 0.9.1: trainer/ppo/ray_trainer.py, RayPPOTrainer (`trainer.use_v1=false`; verl calls it the legacy trainer).

    prompts --repeat n--> generate_sequences --union--> balance_batch -> compute_reward -> compute_log_prob --union-->
        [compute_ref_log_prob --union-->] [compute_values --union-->] compute_advantage -> [update_critic] ->
        update_actor -> update_weights

Read `step`, and PPOTrainer.step_once of trainer/base.py beside it. There is no queue: the driver holds all tensors of
the step, padded to the widths of the config, and no row moves on before the slowest session has ended. Tokenizer, data,
servers, agent loops, reward, tensor functions, actor and validation metrics are those of V1.

Left out: what support.py refuses, checkpoints among it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kitlib.algos import get_kl_controller
from kitlib.config import Config
from kitlib.contract import StageRecord
from kitlib.reward import RewardLoopWorker
from kitlib.rollout import LLMServerClient
from kitlib.trainer.base import NUM_RECORDS_KEPT
from kitlib.trainer.observers import Observer
from kitlib.trainer.parts import Parts, build_parts
from kitlib.trainer.profiling import make_profiler
from kitlib.trainer.rollout_dump import RolloutWriter
from kitlib.trainer.tracking import make_loggers
from kitlib.trainer.v0.agent_loop import AgentLoopManager
from kitlib.trainer.v0.protocol import DataProto
from kitlib.trainer.v0.reporting import Reporting
from kitlib.trainer.v0.support import require_serial

_NO_QUEUE: Any = None  # the worker group of V1 holds one; the serial pipeline calls the worker behind it


class PPOTrainerV0(Reporting):
    """Builds the parts from the config, runs the steps, and closes what it has started. Arguments as PPOTrainer's."""

    trainer_mode = "v0"

    def __init__(self, config: Config, run_dir: Path | None = None, observers: Sequence[Observer] = ()) -> None:
        self.config = config
        self.run_dir = run_dir
        self.observers = [*make_loggers(config, run_dir), *make_profiler(config, run_dir), *observers]
        self.global_steps = 0
        self.epoch = 0
        self.metrics: dict[str, Any] = {}
        self.timing_raw: dict[str, float] = {}
        self.stage_records: deque[StageRecord] = deque(maxlen=NUM_RECORDS_KEPT)
        self.parts: Parts | None = None

    # Life

    def init(self) -> None:
        """Build tokenizer, dataloaders, actor, servers and agent loop; the servers get the actor's weights."""
        require_serial(self.config)
        self.parts = parts = build_parts(self.config, _NO_QUEUE)
        self.tokenizer = parts.tokenizer
        self.train_dataloader, self.val_dataloader = parts.train_dataloader, parts.val_dataloader
        self.train_iterator = iter(self.train_dataloader)
        self.steps_per_epoch, self.total_training_steps = parts.steps_per_epoch, parts.total_training_steps
        self.actor_rollout_wg, self.worker = parts.workers.actor, parts.workers.actor.worker
        self.reference = parts.workers.reference.worker if parts.workers.reference is not None else None
        self.critic = parts.workers.critic.worker if parts.workers.critic is not None else None
        self.kl_ctrl_in_reward = get_kl_controller(self.config.algorithm.kl_ctrl)
        self.checkpoint_manager = parts.checkpoint_manager
        folder = self.config.trainer.rollout_data_dir
        file = self.run_dir / "rollouts.jsonl" if self.run_dir else None
        self.rollout_writer = RolloutWriter(self.tokenizer, file, Path(folder) if folder else None)
        self.update_weights()

    def build_agent_loop_manager(self) -> AgentLoopManager:
        """The agent loop on the trainer's servers, scoring each session as it ends."""
        assert self.parts is not None, "call init() first"
        client: LLMServerClient = self.parts.llm_server_manager.get_client()
        return AgentLoopManager(self.config, client, self.tokenizer, [RewardLoopWorker(self.config, self.tokenizer)])

    def attach(self, agent_loop_manager: AgentLoopManager) -> None:
        """Take the agent loop to generate with."""
        self.agent_loop_manager = agent_loop_manager

    def close(self) -> None:
        """End every thread and process group this trainer has started; safe to call twice."""
        if self.parts is not None:
            self.parts.close()
            self.parts = None

    # The loop

    def fit(self, agent_loop_manager: AgentLoopManager | None = None) -> dict[str, float]:
        """Train until `total_training_steps`. Returns the metrics of the last validation."""
        if agent_loop_manager is not None:
            self.attach(agent_loop_manager)
        try:
            self._tell("on_fit_begin")
            return self._fit()
        finally:
            self._tell("on_fit_end")

    def _fit(self) -> dict[str, float]:
        val_metrics: dict[str, float] = {}
        if self.config.trainer.val_before_train:
            val_metrics = self.validate()
            self._log(val_metrics)
            if self.config.trainer.val_only:
                return val_metrics
        self.global_steps += 1
        while self.global_steps <= self.total_training_steps:
            self.begin_step()
            batch = self.step()
            self.end_step()
            if self._validates_now():
                val_metrics = self.validate()
                self.metrics |= val_metrics
            self.compute_metrics(batch)
            self.log_rollout_data(batch)
            self._log(self.metrics)
            self.global_steps += 1
        return val_metrics

    def begin_step(self, global_steps: int | None = None) -> None:
        """Start the clock and the metrics of a step; `global_steps` sets its number (the first step is 1)."""
        if global_steps is not None:
            self.global_steps = global_steps
        self.metrics, self.timing_raw = {}, {}
        self.epoch = (self.global_steps - 1) // self.steps_per_epoch
        self._step_began = time.perf_counter()
        self._tell("on_step_begin")

    def step(self) -> DataProto:
        """One step, from prompts to new weights in the servers. Returns the batch with all its columns."""
        rollout_n = self.config.actor_rollout_ref.rollout.n
        batch = self.next_batch()
        gen_batch = self.get_gen_batch(batch).repeat(rollout_n, interleave=True)
        batch = batch.repeat(rollout_n, interleave=True).union(self.generate_sequences(gen_batch))
        batch = self.balance_batch(batch)
        batch = self.compute_reward(batch)
        batch = batch.union(self.compute_log_prob(batch))
        if self.reference is not None:
            batch = batch.union(self.compute_ref_log_prob(batch))
        if self.critic is not None:
            batch = batch.union(self.compute_values(batch))
        batch = self.compute_advantage(batch)
        if self.critic is not None:
            batch = self.update_critic(batch)
        if self.updates_actor():
            batch = self.update_actor(batch)
        self.update_weights()
        return batch

    def end_step(self) -> None:
        """Stop the clock of the step."""
        self.timing_raw["step"] = time.perf_counter() - self._step_began
        self._tell("on_step_end")

    def _validates_now(self) -> bool:
        every = self.config.trainer.test_freq
        is_last = self.global_steps == self.total_training_steps
        return every > 0 and (is_last or self.global_steps % every == 0)

    # Records

    def on_stage(self, record: StageRecord) -> None:
        """Keep the record of a stage that has ended, and tell the observers."""
        if record.seconds is not None:
            self.stage_records.append(record)
        self._tell("on_stage", record)

    def _log(self, metrics: dict[str, Any]) -> None:
        self._tell("on_metrics", metrics, self.global_steps)

    def _tell(self, event: str, *args: Any) -> None:
        """Observers know the trainer of V1; what they ask of this one (config, step, parts) has the same names."""
        for observer in self.observers:
            getattr(observer, event)(self, *args)
