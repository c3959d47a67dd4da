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
from kitlib.trainer.observers import Observer
from kitlib.trainer.parts import build_agent_loop_manager
from kitlib.trainer.registry import get_trainer_cls
from kitlib.transfer_queue import QueueProtocol


def set_seed(seed: int) -> None:
    """Seed Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class TaskRunner:
    """Builds a trainer and its agent loop, runs them, closes them.

        TaskRunner().run(load_config(["trainer.total_training_steps=5"]))

    For a notebook, `start` gives the trainer ready to be called stage by stage, and `close` ends it.
    """

    def __init__(self) -> None:
        self.trainer: PPOTrainer | None = None
        self.agent_loop_manager: AgentLoopManagerTQ | None = None

    def start(
        self,
        config: Config,
        tq: QueueProtocol | None = None,
        run_dir: Path | None = None,
        observers: Sequence[Observer] = (),
    ) -> PPOTrainer:
        """Build everything; nothing is submitted yet. Closes what it has built if a part cannot be built."""
        set_seed(config.kitlib.seed)
        if config.kitlib.num_threads is not None:
            torch.set_num_threads(config.kitlib.num_threads)
        if run_dir is not None:
            run_dir.mkdir(parents=True, exist_ok=True)
            (run_dir / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        self.trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config, tq, run_dir, observers)
        try:
            self.trainer.init()
            self.agent_loop_manager = build_agent_loop_manager(config, self.trainer)
            self.trainer.attach(self.agent_loop_manager)
        except BaseException:
            self.close()
            raise
        return self.trainer

    def run(
        self,
        config: Config,
        tq: QueueProtocol | None = None,
        run_dir: Path | None = None,
        observers: Sequence[Observer] = (),
    ) -> dict[str, float]:
        """Train to the end. Returns the metrics of the last validation; saves the model to `run_dir/model`."""
        try:
            trainer = self.start(config, tq, run_dir, observers)
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
