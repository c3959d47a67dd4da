"""The V1 trainer: the loop and its hooks.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer. One step:

    prepare_step  prompts -> markers in the queue, the agent loop starts (returns at once)      feeding.py
    step_once     sample -> [reward model] -> balance -> old log-prob -> [reference] -> [values]
                  -> advantage -> [update critic] -> update actor                               stages.py
    save          every `trainer.save_freq` steps; a run that was killed goes on from there     checkpointing.py
    end_step      weight sync
    then          validate, metrics, dump, clear                                                validating.py

The trainer talks to its parts through the queue and keeps no tensor. A mode (sync, ...) is a subclass that fills in the
hooks:

    on_init_end       parts are built           on_sample_begin/_end   around the wait for finished groups
    on_train_begin    before the first step     on_step_begin/_end     around a step
    on_train_end      after the last step       on_validate_begin/_end around a validation

Left out: skip switches. A config that asks
for one of them is refused at the start (kitlib.config.require_supported).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kitlib.agent_loop import AgentLoopManagerTQ
from kitlib.algos import get_kl_controller
from kitlib.config import Config
from kitlib.contract import StageRecord, stage
from kitlib.replay_buffer import FILTERED_REWARD_COUNTS, ReplayBuffer
from kitlib.rollout import FullyAsyncLLMServerClient, LLMServerClient
from kitlib.trainer.aggregate import aggregate
from kitlib.trainer.border_doctor import BorderDoctor
from kitlib.trainer.checkpoint import checkpoint_root
from kitlib.trainer.checkpointing import Checkpointing
from kitlib.trainer.formulas import Formula, reference_formulas
from kitlib.trainer.observers import Observer
from kitlib.trainer.parts import Parts, build_parts, build_replay_buffer, make_queue
from kitlib.trainer.profiling import make_profiler
from kitlib.trainer.rollout_dump import RolloutWriter
from kitlib.trainer.tracking import make_loggers
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol

NUM_RECORDS_KEPT = 10_000


class PPOTrainer(Checkpointing):
    """Builds the parts from the config, runs the steps, and closes what it has started.

    Args:
        config: see `kitlib.config.load_config`.
        tq: the queue; a fresh in-process one by default.
        run_dir: folder for metrics.jsonl, rollouts.jsonl and checkpoints; nothing is written without it.
        observers: told of stages and metrics, see observers.py.
    """

    trainer_mode = "base"
    replay_buffer_class: type[ReplayBuffer] = ReplayBuffer
    partial_rollout = False  # aborted requests go on after a weight sync

    def __init__(
        self,
        config: Config,
        tq: QueueProtocol | None = None,
        run_dir: Path | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.config = config
        self.tq = tq if tq is not None else make_queue(config)
        self.run_dir = run_dir
        self.checkpoint_root = checkpoint_root(config, run_dir)
        self.resumed_from: Path | None = None  # folder of the checkpoint
        watchers = [*make_loggers(config, run_dir), *make_profiler(config, run_dir)]
        self.observers = [*watchers, *([BorderDoctor()] if config.kitlib.strict else []), *observers]
        self.strict = config.kitlib.strict
        self.global_steps = 0
        self.epoch = 0  # pass over the training data that the step belongs to
        self.parameter_sync_step = 1  # updates between two weight syncs
        self.local_trigger_step = 0  # which of them is running
        self.metrics: dict[str, Any] = {}
        self.timing_raw: dict[str, float] = {}
        self.stage_records: deque[StageRecord] = deque(maxlen=NUM_RECORDS_KEPT)
        self.parts: Parts | None = None

    # Life

    def init(self) -> None:
        """Build tokenizer, dataloaders, actor and servers, and load the checkpoint to resume from, if there is one.

        The servers get the actor's weights.
        """
        self.parts = parts = build_parts(self.config, self.tq, self.parameter_sync_step)
        self.tokenizer = parts.tokenizer
        self.train_dataloader, self.val_dataloader = parts.train_dataloader, parts.val_dataloader
        self.actor_rollout_wg, self.ref_policy_wg = parts.workers.actor, parts.workers.reference
        self.critic_wg, self.reward_model = parts.workers.critic, parts.workers.reward_model
        self.kl_ctrl_in_reward = get_kl_controller(self.config.algorithm.kl_ctrl)
        self.checkpoint_manager = parts.checkpoint_manager
        self.steps_per_epoch = parts.steps_per_epoch
        self.total_training_steps = parts.total_training_steps
        self.resumed_from = self.load_checkpoint()
        self.train_iterator = iter(self.train_dataloader)
        folder = self.config.trainer.rollout_data_dir
        file = self.run_dir / "rollouts.jsonl" if self.run_dir else None
        self.rollout_writer = RolloutWriter(self.tokenizer, file, Path(folder) if folder else None)
        self.on_init_end()

    def attach(self, agent_loop_manager: AgentLoopManagerTQ) -> None:
        """Take the agent loop to submit prompts to; its task ledger ends a wait when a task has died."""
        self.agent_loop_manager = agent_loop_manager
        self.replay_buffer = build_replay_buffer(self)

    def get_llm_client(self) -> LLMServerClient:
        """The client that the agent loop shall use; with partial rollout, one that resumes what was aborted."""
        assert self.parts is not None, "call init() first"
        manager = self.parts.llm_server_manager
        if not self.partial_rollout:
            return manager.get_client()
        response_length = self.config.actor_rollout_ref.rollout.response_length
        return manager.get_client(FullyAsyncLLMServerClient, response_length=response_length)

    def close(self) -> None:
        """End every thread and process group this trainer has started; safe to call twice."""
        if self.parts is not None:
            self.parts.close()
            self.parts = None

    # The loop

    def fit(self, agent_loop_manager: AgentLoopManagerTQ | None = None) -> dict[str, float]:
        """Train until `total_training_steps`. Returns the metrics of the last validation."""
        if agent_loop_manager is not None:
            self.attach(agent_loop_manager)
        try:
            for observer in self.observers:
                observer.on_fit_begin(self)
            return self._fit()
        finally:
            for observer in self.observers:
                observer.on_fit_end(self)

    def _fit(self) -> dict[str, float]:
        val_metrics: dict[str, float] = {}
        if self.config.trainer.val_before_train:
            val_metrics = self.run_validation()
            self._log(val_metrics)
            if self.config.trainer.val_only:
                return val_metrics
        self.global_steps += 1
        if self.global_steps <= self.total_training_steps:  # else a finished run was resumed
            if self.resumed_from is not None:
                self.reissue_inflight_prompts()
            self.on_train_begin()
        while self.global_steps <= self.total_training_steps:
            self.begin_step()
            batch = self.step()
            if self._is_due(self.config.trainer.save_freq):
                self.save_checkpoint()
            self.end_step()
            if self._is_due(self.config.trainer.test_freq):
                val_metrics = self.run_validation()
                self.metrics |= val_metrics
            self.compute_metrics(batch)
            self.log_rollout_data(batch)
            self.clear(batch)
            self._log(self.metrics)
            self.global_steps += 1
        self.on_train_end()
        return val_metrics

    def begin_step(self, global_steps: int | None = None) -> None:
        """Start the clock and the metrics of a step; `global_steps` sets its number (the first step is 1)."""
        if global_steps is not None:
            self.global_steps = global_steps
        self.metrics, self.timing_raw = {}, {}
        self.epoch = (self.global_steps - 1) // self.steps_per_epoch
        self._step_began = time.perf_counter()
        for observer in self.observers:
            observer.on_step_begin(self)
        self.on_step_begin()

    def step(self) -> KVBatchMeta:
        """Submit the prompts of this step and train on what comes back, in `parameter_sync_step` updates.

        Returns the handle of all rows that were trained on.
        """
        self.prepare_step()
        batches, updates = [], []
        for trigger_step in range(self.parameter_sync_step):
            self.local_trigger_step, self.metrics = trigger_step, {}
            batches.append(self.step_once(self.config.data.train_batch_size // self.parameter_sync_step))
            updates.append((self.metrics, sum(not tag.get("is_padding") for tag in batches[-1].tags)))
        self.metrics = aggregate(updates)
        return KVBatchMeta(
            keys=[key for batch in batches for key in batch.keys],
            tags=[tag for batch in batches for tag in batch.tags],
            partition_id="train",
        )

    def step_once(self, sample_batch_size: int) -> KVBatchMeta:
        """One update: from finished groups to new weights in the actor."""
        self.on_sample_begin()
        batch = self.sample(sample_batch_size)
        self.on_sample_end()
        if self.reward_model is not None:
            batch = self.compute_reward_colocate(batch)
        batch = self.balance_batch(batch)
        batch = self.compute_old_log_prob(batch)
        if self.ref_policy_wg is not None:
            batch = self.compute_ref_log_prob(batch)
        if self.critic_wg is not None:
            batch = self.compute_values(batch)
        batch = self.compute_advantage(batch)
        if self.critic_wg is not None:
            batch = self.update_critic(batch)
        if self.updates_actor():
            batch = self.update_actor(batch)
        return batch

    def end_step(self) -> None:
        """Weight sync, then stop the clock of the step."""
        self.on_step_end()
        self.timing_raw["step"] = time.perf_counter() - self._step_began
        for observer in self.observers:
            observer.on_step_end(self)

    def run_validation(self) -> dict[str, float]:
        """`validate` between its hooks."""
        self.on_validate_begin()
        metrics = self.validate()
        self.on_validate_end()
        return metrics

    def _is_due(self, every: int) -> bool:
        """True at each multiple of `every` and at the last step; never if it is not positive."""
        is_last = self.global_steps == self.total_training_steps
        return every > 0 and (is_last or self.global_steps % every == 0)

    @property
    def formulas(self) -> dict[str, Formula]:
        """Advantages and loss of a batch once more, by the reference functions: what `check_run` compares."""
        dp_size = self.actor_rollout_wg.dp_size if self.parts is not None else 1
        return reference_formulas(self.tq, self.config, self.metrics, dp_size)

    # Records

    def on_stage(self, record: StageRecord) -> None:
        if record.seconds is not None:
            self.stage_records.append(record)
        for observer in self.observers:
            observer.on_stage(self, record)

    def _log(self, metrics: dict[str, Any]) -> None:
        numbers = {name: value for name, value in metrics.items() if name != FILTERED_REWARD_COUNTS}
        for observer in self.observers:
            observer.on_metrics(self, numbers, self.global_steps)

    # Hooks: what a mode does between the stages

    @stage("update_weights")
    def update_weights(self) -> None:
        """Send the actor's weights to every server; what they generate from now on has version `global_steps`."""
        self.checkpoint_manager.update_weights(self.global_steps)

    def on_init_end(self) -> None: ...

    def on_train_begin(self) -> None: ...

    def on_train_end(self) -> None: ...

    def on_step_begin(self) -> None: ...

    def on_step_end(self) -> None: ...

    def on_sample_begin(self) -> None: ...

    def on_sample_end(self) -> None: ...

    def on_validate_begin(self) -> None: ...

    def on_validate_end(self) -> None: ...
