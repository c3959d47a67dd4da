"""The V1 trainer: the loop, its hooks, and how prompts enter.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer. One step:

    submit      prompts -> markers in the queue, agent loop starts (returns at once)
    step_once   sample -> balance -> old log-prob -> advantage -> update actor
    on_step_end weight sync
    validate, metrics, dump, clear

The trainer talks to its parts through the queue and keeps no tensor. A mode (sync, ...) is a subclass that fills in
the hooks:

    on_init_end       parts are built           on_sample_begin/_end   around the wait for finished groups
    on_train_begin    before the first step     on_step_begin/_end     around a step
    on_train_end      after the last step       on_validate_begin/_end around a validation

Left out so far: critic, reference policy, reward model, checkpoints, skip and profiling switches. A config that asks
for one of them is refused at the start (see parts.py)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensordict import NonTensorData, TensorDict

from kitlib.agent_loop import AgentLoopManagerTQ
from kitlib.config import Config
from kitlib.contract import StageRecord, stage
from kitlib.keys import new_uid
from kitlib.replay_buffer import ReplayBuffer
from kitlib.trainer.errors import TrainerError
from kitlib.trainer.observers import Observer
from kitlib.trainer.parts import Parts, build_parts
from kitlib.trainer.rollout_dump import RolloutWriter
from kitlib.trainer.stages import PPOStages
from kitlib.trainer.tracking import make_loggers
from kitlib.trainer.validation import ValidationRows, final_rows, validation_metrics
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, TransferQueue, list_of_dict_to_tensordict

NUM_RECORDS_KEPT = 10_000


class PPOTrainer(PPOStages):
    """Builds the parts from the config, runs the steps, and closes what it has started.

    Args:
        config: see `kitlib.config.load_config`.
        tq: the queue; a fresh in-process one by default.
        run_dir: folder for metrics.jsonl and rollouts.jsonl; nothing is written without it.
        observers: told of stages and metrics, see observers.py.
    """

    trainer_mode = "base"

    def __init__(
        self,
        config: Config,
        tq: QueueProtocol | None = None,
        run_dir: Path | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.config = config
        self.tq = tq if tq is not None else TransferQueue()
        self.run_dir = run_dir
        self.observers = [*make_loggers(config.trainer.logger, run_dir), *observers]
        self.strict = config.kitlib.strict
        self.global_steps = 0
        self.epoch = 0  # pass over the training data that the step belongs to
        self.metrics: dict[str, float] = {}
        self.timing_raw: dict[str, float] = {}
        self.stage_records: deque[StageRecord] = deque(maxlen=NUM_RECORDS_KEPT)
        self.parts: Parts | None = None

    # Life

    def init(self) -> None:
        """Build tokenizer, dataloaders, actor, servers and replay buffer; the servers get the actor's weights."""
        self.parts = parts = build_parts(self.config, self.tq)
        self.tokenizer = parts.tokenizer
        self.train_dataloader = parts.train_dataloader
        self.actor_rollout_wg = parts.actor_rollout_wg
        self.checkpoint_manager = parts.checkpoint_manager
        self.train_iterator = iter(parts.train_dataloader)
        self.total_training_steps = parts.total_training_steps
        folder = self.config.trainer.rollout_data_dir
        self.rollout_writer = RolloutWriter(
            self.tokenizer,
            file=self.run_dir / "rollouts.jsonl" if self.run_dir else None,
            folder=Path(folder) if folder else None,
        )
        self.on_init_end()

    def attach(self, agent_loop_manager: AgentLoopManagerTQ) -> None:
        """Take the agent loop to submit prompts to; its task ledger ends a wait when a task has died."""
        self.agent_loop_manager = agent_loop_manager
        self.replay_buffer = ReplayBuffer(
            self.tq,
            trainer_mode=self.trainer_mode,
            raise_if_failed=agent_loop_manager.ledger.raise_if_failed,
        )

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
        self.on_train_begin()
        while self.global_steps <= self.total_training_steps:
            is_last = self.global_steps == self.total_training_steps
            self.begin_step()
            batch = self.step()
            self.end_step()
            if self.config.trainer.test_freq > 0 and (
                is_last or self.global_steps % self.config.trainer.test_freq == 0
            ):
                val_metrics = self.run_validation()
                self.metrics |= val_metrics
            self.compute_metrics(batch)
            self.log_rollout_data(batch)
            self.clear(batch)
            self._log(self.metrics)
            self.global_steps += 1
        self.on_train_end()
        return val_metrics

    def begin_step(self) -> None:
        """Start the clock and the metrics of a step."""
        self.metrics, self.timing_raw = {}, {}
        self.epoch = (self.global_steps - 1) // len(self.train_dataloader)
        self._step_began = time.perf_counter()
        self.on_step_begin()

    def step(self) -> KVBatchMeta:
        """Submit the prompts of this step and train on what comes back."""
        self.prepare_step()
        return self.step_once(self.config.data.train_batch_size)

    def step_once(self, sample_batch_size: int) -> KVBatchMeta:
        """One update: from finished groups to new weights in the actor."""
        self.on_sample_begin()
        batch = self.sample(sample_batch_size)
        self.on_sample_end()
        batch = self.balance_batch(batch)
        batch = self.compute_old_log_prob(batch)
        batch = self.compute_advantage(batch)
        return self.update_actor(batch)

    def end_step(self) -> None:
        """Weight sync, then stop the clock of the step."""
        self.on_step_end()
        self.timing_raw["step"] = time.perf_counter() - self._step_began

    def _log(self, metrics: dict[str, float]) -> None:
        for observer in self.observers:
            observer.on_metrics(self, metrics, self.global_steps)

    # Prompts

    def fetch_one_gen_batch(self) -> TensorDict:
        """Take one `gen_batch_size` chunk of *prompts* from the dataloader and give each a uid.

        The name misleads: finished trajectories come from `ReplayBuffer.sample`, not from here.
        """
        try:
            rows = next(self.train_iterator)
        except StopIteration:
            self.train_iterator = iter(self.train_dataloader)
            rows = next(self.train_iterator)
        return prompts_to_tensordict(rows)

    def next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """`num_prompts` prompts (default `data.train_batch_size`), in whole chunks of `data.gen_batch_size`."""
        num_prompts = num_prompts or self.config.data.train_batch_size
        chunk = self.config.data.gen_batch_size or self.config.data.train_batch_size
        if num_prompts % chunk:
            raise TrainerError(
                f"{num_prompts} prompts cannot be fetched in whole chunks of data.gen_batch_size={chunk}"
            )
        chunks = [self.fetch_one_gen_batch() for _ in range(num_prompts // chunk)]
        batch = chunks[0] if len(chunks) == 1 else TensorDict.cat(chunks)
        batch["global_steps"] = NonTensorData(self.global_steps)
        return batch

    @stage("submit_batch_to_rollout")
    def submit_batch_to_rollout(self, batch: TensorDict) -> int:
        """Register the prompts as pending markers in `train` and start the agent loop; returns at once.

        Returns the number of prompts.
        """
        self._register(batch, "train")
        self.agent_loop_manager.generate_sequences(batch)
        return len(batch)

    def prepare_step(self) -> None:
        """Submit one training batch."""
        self.submit_batch_to_rollout(self.next_train_batch())

    def _register(self, batch: TensorDict, partition_id: str) -> list[str]:
        uids = batch.get("uid").tolist()
        tags = [{"is_prompt": True, "status": "pending", "global_steps": self.global_steps} for _ in uids]
        self.tq.kv_batch_put(keys=uids, partition_id=partition_id, tags=tags)
        return uids

    # Validation

    def run_validation(self) -> dict[str, float]:
        """`validate` between its hooks."""
        self.on_validate_begin()
        metrics = self.validate()
        self.on_validate_end()
        return metrics

    @stage("validate")
    def validate(self) -> dict[str, float]:
        """Run every validation prompt through the agent loop in the partition `val`; returns val-core/* and
        val-aux/*.
        """
        assert self.parts is not None
        rows = ValidationRows()
        writer = self._validation_writer()
        for prompts in self.parts.val_dataloader:
            batch = prompts_to_tensordict(prompts)
            batch["global_steps"] = NonTensorData(self.global_steps)
            batch["validate"] = NonTensorData(True)
            uids = self._register(batch, "val")
            num_sessions = self.config.actor_rollout_ref.rollout.val_kwargs.n
            sources = batch.get("data_source").tolist()
            rows.expected |= dict.fromkeys(zip(sources, uids, strict=True), num_sessions)
            self.agent_loop_manager.generate_sequences(batch)
            sampled, _ = self.replay_buffer.sample(self.global_steps, "val", batch_size=len(uids))
            self._collect(sampled.select_keys([sampled.keys[row] for row in final_rows(sampled.keys)]), rows, writer)
            self.tq.kv_clear(keys=sampled.keys, partition_id="val")
        return validation_metrics(rows)

    def _validation_writer(self) -> RolloutWriter | None:
        folder = self.config.trainer.validation_data_dir
        return RolloutWriter(self.tokenizer, folder=Path(folder)) if folder else None

    def _collect(self, batch: KVBatchMeta, rows: ValidationRows, writer: RolloutWriter | None) -> None:
        """Keep the scores of one validation batch, one row a session."""
        fields = (
            "prompts",
            "responses",
            "uid",
            "rm_scores",
            "num_turns",
            "reward_model",
            "data_source",
            "extra_fields",
        )
        data = self.pull(batch, *fields)
        infos = []
        for scores, extra in zip(data["rm_scores"].unbind(), data.get("extra_fields").tolist(), strict=True):
            infos.append({"reward": scores.sum().item(), **extra.get("reward_extra_info", {})})
        rows.infos += infos
        rows.uids += data.get("uid").tolist()
        rows.data_sources += data.get("data_source").tolist()
        if "num_turns" in data:
            rows.num_turns += data.get("num_turns").tolist()
        if writer is not None:
            writer.write(batch.keys, data, self.global_steps, extra=infos)

    # Records

    def on_stage(self, record: StageRecord) -> None:
        if record.seconds is not None:
            self.stage_records.append(record)
        for observer in self.observers:
            observer.on_stage(self, record)

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


def prompts_to_tensordict(rows: dict[str, Any]) -> TensorDict:
    """Collated dataloader rows, each with a fresh uid: tensors stay dense, everything else becomes one object a row."""
    num_rows = len(rows["raw_prompt"])
    columns = {**rows, "uid": [new_uid() for _ in range(num_rows)]}
    return list_of_dict_to_tensordict([{name: column[i] for name, column in columns.items()} for i in range(num_rows)])
