"""One training run from config to closing: the outermost call of the chain.

verl 0.9.1: trainer/main_ppo.py, TaskRunnerV1.run: start the queue, build the trainer by mode, build the agent loop on
its LLM client, fit. Differs from verl: it runs in this process, not in a Ray actor, and it always closes what it has
opened, also after Ctrl-C.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from kitlib.agent_loop import AgentLoopManagerTQ
from kitlib.config import Config
from kitlib.trainer import colocate_async, separate_async, sync  # noqa: F401  registers the modes
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.errors import TrainerError
from kitlib.trainer.observers import Observer
from kitlib.trainer.parts import build_agent_loop_manager
from kitlib.trainer.registry import get_trainer_cls
from kitlib.trainer.v0 import PPOTrainerV0
from kitlib.transfer_queue import QueueProtocol


def set_seed(seed: int) -> None:
    """Seed Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _prepare(config: Config, run_dir: Path | None) -> None:
    """What every run does before it builds anything."""
    set_seed(config.kitlib.seed)
    if config.kitlib.num_threads is not None:
        torch.set_num_threads(config.kitlib.num_threads)
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")


class TaskRunner:
    """Builds a trainer and its agent loop, runs them, closes them.

        TaskRunner().run(load_config(["trainer.total_training_steps=5"]))

    For a notebook, `start` gives the trainer ready to be called stage by stage, and `close` ends it; `start_v0` does
    the same for the serial pipeline of `trainer.use_v1=false`.
    """

    def __init__(self) -> None:
        self.trainer: PPOTrainer | PPOTrainerV0 | None = None
        self.agent_loop_manager: AgentLoopManagerTQ | None = None

    def start(
        self,
        config: Config,
        tq: QueueProtocol | None = None,
        run_dir: Path | None = None,
        observers: Sequence[Observer] = (),
    ) -> PPOTrainer:
        """Build everything; nothing is submitted yet. Closes what it has built if a part cannot be built."""
        if not config.trainer.use_v1:
            raise TrainerError("trainer.use_v1=false: start() gives a V1 trainer, call start_v0()")
        _prepare(config, run_dir)
        self.trainer = trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config, tq, run_dir, observers)
        try:
            trainer.init()
            self.agent_loop_manager = manager = build_agent_loop_manager(config, trainer)
            trainer.attach(manager)
        except BaseException:
            self.close()
            raise
        return trainer

    def start_v0(self, config: Config, run_dir: Path | None = None, observers: Sequence[Observer] = ()) -> PPOTrainerV0:
        """As `start`, for the serial pipeline: there is no queue to pass."""
        _prepare(config, run_dir)
        self.trainer = trainer = PPOTrainerV0(config, run_dir, observers)
        try:
            trainer.init()
            self.agent_loop_manager = manager = trainer.build_agent_loop_manager()
            trainer.attach(manager)
        except BaseException:
            self.close()
            raise
        return trainer

    def run(
        self,
        config: Config,
        tq: QueueProtocol | None = None,
        run_dir: Path | None = None,
        observers: Sequence[Observer] = (),
    ) -> dict[str, float]:
        """Train to the end. Returns the metrics of the last validation; saves the model to `run_dir/model`."""
        trainer: PPOTrainer | PPOTrainerV0
        try:
            if config.trainer.use_v1:
                trainer = self.start(config, tq, run_dir, observers)
            else:
                trainer = self.start_v0(config, run_dir, observers)
            metrics = trainer.fit()
            if run_dir is not None:
                trainer.actor_rollout_wg.save_pretrained(run_dir / "model", trainer.tokenizer)
            return metrics
        finally:
            self.close()

    def close(self) -> None:
        """End the agent loop, then the servers and the workers."""
        if self.agent_loop_manager is not None:
            self.agent_loop_manager.close()
            self.agent_loop_manager = None
        if self.trainer is not None:
            self.trainer.close()
