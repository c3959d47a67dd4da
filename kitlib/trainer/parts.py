"""Builds what a trainer works with: tokenizer, data, actor, LLM servers, weight sync, agent loop.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._setup, and the wiring in trainer/main_ppo.py,
TaskRunnerV1.run. Differs from verl: all parts live in this process (`kitlib.runtime=local`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kitlib.agent_loop import AgentLoopManagerTQ
from kitlib.config import Config, require_supported
from kitlib.dataset import create_dataloaders
from kitlib.models import load_causal_lm, load_tokenizer
from kitlib.reward import RewardLoopWorker
from kitlib.rollout import CheckpointEngineManager, LLMServerManager
from kitlib.rollout.manager import device_of
from kitlib.transfer_queue import QueueProtocol
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.worker_group import LocalWorkerGroup

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


@dataclass
class Parts:
    """Everything a trainer has started, in the order in which it is closed."""

    tokenizer: Any
    train_dataloader: Any
    val_dataloader: Any
    total_training_steps: int
    llm_server_manager: LLMServerManager
    actor_rollout_wg: LocalWorkerGroup
    checkpoint_manager: CheckpointEngineManager

    def close(self) -> None:
        """End the servers' threads, then the workers' process group."""
        self.llm_server_manager.close()
        self.actor_rollout_wg.close()


def build_parts(config: Config, tq: QueueProtocol) -> Parts:
    """Build the parts; a config that asks for what is not there is refused before anything starts."""
    require_supported(config)
    tokenizer = load_tokenizer(config.actor_rollout_ref.model.path)
    train_dataloader, val_dataloader = create_dataloaders(config, tokenizer)
    steps = config.trainer.total_training_steps or len(train_dataloader) * config.trainer.total_epochs
    config.update("actor_rollout_ref.actor.optim.total_training_steps", steps, "the number of training steps")
    servers = LLMServerManager(config, tokenizer)
    try:
        model = load_causal_lm(config.actor_rollout_ref.model.path)
        worker = ActorRolloutRefWorker(config, model, device_of(config.trainer.device))
    except BaseException:
        servers.close()
        raise
    actor = LocalWorkerGroup(worker, tq)
    return Parts(
        tokenizer=tokenizer,
        train_dataloader=train_dataloader,
        val_dataloader=val_dataloader,
        total_training_steps=steps,
        llm_server_manager=servers,
        actor_rollout_wg=actor,
        checkpoint_manager=CheckpointEngineManager(actor, servers.replicas),
    )


def build_agent_loop_manager(config: Config, trainer: PPOTrainer) -> AgentLoopManagerTQ:
    """The agent loop on the trainer's queue and servers, scoring each session as it ends (streaming reward)."""
    assert trainer.parts is not None, "call trainer.init() first"
    tokenizer = trainer.parts.tokenizer
    return AgentLoopManagerTQ(
        config,
        trainer.tq,
        trainer.parts.llm_server_manager.get_client(),
        tokenizer,
        reward_loop_worker_handles=[RewardLoopWorker(config, tokenizer)],
    )
