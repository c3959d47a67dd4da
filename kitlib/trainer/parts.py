"""Builds what a trainer works with: tokenizer, data, workers, LLM servers, weight sync, agent loop.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._setup, and the wiring in trainer/main_ppo.py,
TaskRunnerV1.run. Differs from verl: all parts live in this process (`kitlib.runtime=local`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kitlib.agent_loop import AgentLoopManagerTQ
from kitlib.config import Config, require_supported
from kitlib.contract import needs
from kitlib.dataset import create_dataloaders
from kitlib.models import load_causal_lm, load_tokenizer, load_value_model
from kitlib.replay_buffer import ReplayBuffer
from kitlib.reward import RewardLoopWorker
from kitlib.reward.reward_model import RewardModel
from kitlib.rollout import CheckpointEngineManager, LLMServerManager
from kitlib.rollout.manager import device_of
from kitlib.transfer_queue import QueueProtocol, TransferQueue, watch
from kitlib.user_code import load_user_object
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.critic import CriticWorker
from kitlib.workers.lora import uses_lora
from kitlib.workers.reference import ReferenceWorker
from kitlib.workers.worker_group import CriticWorkerGroup, LocalWorkerGroup, ReferenceWorkerGroup

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


@dataclass
class Workers:
    """The models that score and learn. What the config has no use for is None."""

    actor: LocalWorkerGroup
    reference: ReferenceWorkerGroup | None = None
    critic: CriticWorkerGroup | None = None
    reward_model: RewardModel | None = None  # if it shares the trainer's devices

    def close(self) -> None:
        """Give the process groups back."""
        for group in (self.actor, self.reference, self.critic):
            if group is not None:
                group.close()


@dataclass
class Parts:
    """Everything a trainer has started, in the order in which it is closed."""

    tokenizer: Any
    train_dataloader: Any
    val_dataloader: Any
    steps_per_epoch: int
    total_training_steps: int
    llm_server_manager: LLMServerManager
    workers: Workers
    checkpoint_manager: CheckpointEngineManager

    def close(self) -> None:
        """End the servers' threads, then the workers' process groups."""
        self.llm_server_manager.close()
        self.workers.close()


def make_queue(config: Config) -> Any:
    """An in-process queue of the size that `transfer_queue.backend.SimpleStorage` asks for; with `kitlib.record` it is
    watched: its `log` has every call."""
    storage = config.transfer_queue.backend.SimpleStorage
    tq = TransferQueue(storage.num_data_storage_units, storage.total_storage_size)
    return watch(tq) if config.kitlib.record else tq


def build_parts(config: Config, tq: QueueProtocol, parameter_sync_step: int = 1) -> Parts:
    """Build the parts; a config that asks for what is not there is refused before anything starts.

    The learning-rate schedule is told the number of its steps: one an update, `parameter_sync_step` a training step.
    """
    require_supported(config)
    tokenizer = load_tokenizer(config.actor_rollout_ref.model.path)
    train_dataloader, val_dataloader = create_dataloaders(config, tokenizer)
    steps_per_epoch = len(train_dataloader.dataset) // config.data.train_batch_size
    steps = config.trainer.total_training_steps or steps_per_epoch * config.trainer.total_epochs
    for section in ("actor_rollout_ref.actor", "critic"):
        num_updates = steps * parameter_sync_step
        config.update(f"{section}.optim.total_training_steps", num_updates, "the number of updates of the run")
    servers = LLMServerManager(config, tokenizer)
    try:
        workers = build_workers(config, tq)
    except BaseException:
        servers.close()
        raise
    return Parts(
        tokenizer=tokenizer,
        train_dataloader=train_dataloader,
        val_dataloader=val_dataloader,
        steps_per_epoch=steps_per_epoch,
        total_training_steps=steps,
        llm_server_manager=servers,
        workers=workers,
        checkpoint_manager=CheckpointEngineManager(
            workers.actor, servers.replicas, backend=config.actor_rollout_ref.rollout.checkpoint_engine.backend
        ),
    )


def build_workers(config: Config, tq: QueueProtocol) -> Workers:
    """The actor, and what the config asks for: frozen reference (KL), critic (values), reward model."""
    path, device = config.actor_rollout_ref.model.path, device_of(config.trainer.device)
    actor = ActorRolloutRefWorker(config, load_causal_lm(path), device)
    workers = Workers(LocalWorkerGroup(actor, tq))
    try:
        if needs("compute_ref_log_prob", config).runs:
            is_in_actor = uses_lora(config.actor_rollout_ref.model)
            reference = actor if is_in_actor else ReferenceWorker(config, load_causal_lm(path), device)
            workers.reference = ReferenceWorkerGroup(reference, tq)
        if needs("compute_values", config).runs:
            model = load_value_model(config.critic.model.path)
            workers.critic = CriticWorkerGroup(CriticWorker(config, model, device), tq)
        if needs("compute_reward_colocate", config).runs:
            workers.reward_model = RewardModel(config.reward.reward_model.model_path, device)
    except BaseException:
        workers.close()
        raise
    return workers


def build_agent_loop_manager(config: Config, trainer: PPOTrainer) -> AgentLoopManagerTQ:
    """The agent loop on the trainer's queue and servers, scoring each session as it ends (streaming reward), unless a
    colocated reward model scores whole batches."""
    assert trainer.parts is not None, "call trainer.init() first"
    tokenizer = trainer.parts.tokenizer
    reward_model = None
    if config.reward.reward_model.enable and trainer.reward_model is None:
        reward_model = RewardModel(config.reward.reward_model.model_path, _device_of_its_own(config))
    num_workers = config.reward.num_workers if trainer.reward_model is None else 0
    return AgentLoopManagerTQ(
        config,
        trainer.tq,
        trainer.get_llm_client(),
        tokenizer,
        reward_loop_worker_handles=[RewardLoopWorker(config, tokenizer, reward_model) for _ in range(num_workers)],
    )


def _device_of_its_own(config: Config) -> torch.device:
    """The last GPU, where there are several; else the trainer's device."""
    device = device_of(config.trainer.device)
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    return torch.device("cuda", num_gpus - 1) if num_gpus > 1 else device


def build_replay_buffer(trainer: PPOTrainer) -> ReplayBuffer:
    """The sampler of the mode, or the class that `trainer.v1.sampler.custom_sampler` names (a ReplayBuffer subclass).

    A custom sampler gets the first six arguments of ReplayBuffer and `refill_fn`, as in verl, and owns its filtering.
    Like the others it ends a wait when a background task has died, and knows which prompts have a running task.
    """
    buffer, ledger = _make_replay_buffer(trainer), trainer.agent_loop_manager.ledger
    buffer.raise_if_failed = ledger.raise_if_failed
    buffer.live_uids = lambda: {record.uid for record in ledger.running()}
    return buffer


def _make_replay_buffer(trainer: PPOTrainer) -> ReplayBuffer:
    config, sampler = trainer.config, trainer.config.trainer.v1.sampler
    common = {
        "trainer_mode": trainer.trainer_mode,
        "trainer_config": config.select(f"trainer.v1.{trainer.trainer_mode}", None),
        "max_off_policy_threshold": sampler.max_off_policy_threshold,
        "max_off_policy_strategy": sampler.max_off_policy_strategy,
        "sampler_kwargs": sampler.sampler_kwargs,
        "refill_fn": trainer.add_prompts_to_generate,
    }
    if sampler.custom_sampler.path:
        key = "trainer.v1.sampler.custom_sampler.path"
        return load_user_object(sampler.custom_sampler.path, sampler.custom_sampler.name, key)(trainer.tq, **common)
    filter_groups = config.algorithm.filter_groups
    return trainer.replay_buffer_class(
        trainer.tq,
        **common,
        filter_groups_metric=filter_groups.metric if filter_groups.enable else None,
        train_batch_size=config.data.train_batch_size,
        gen_batch_size=config.data.gen_batch_size or config.data.train_batch_size,
        max_inflight_gen_batches=filter_groups.max_inflight_gen_batches,
        sync_refill_failed_groups=sampler.sync_refill_failed_groups,
    )
