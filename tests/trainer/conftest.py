"""A small config of the shipped demo, and trainers that are closed whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kitlib.config import Config, load_config
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.task_runner import TaskRunner

SMALL = {
    "data.train_batch_size": 4,
    "data.val_max_samples": 8,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
    "actor_rollout_ref.rollout.n": 4,
    "trainer.total_training_steps": 2,
    "trainer.logger": [],
}


def small_config(**overrides: Any) -> Config:
    """The demo with 4 prompts x 4 sessions and 2 steps; `a__b=1` sets `a.b`."""
    return load_config({**SMALL, **{name.replace("__", "."): value for name, value in overrides.items()}})


@pytest.fixture
def start() -> Iterator[Callable[..., PPOTrainer]]:
    """`start(a__b=1)` gives a trainer ready for its first stage."""
    runners: list[TaskRunner] = []

    def build(**overrides: Any) -> PPOTrainer:
        runners.append(TaskRunner())
        trainer = runners[-1].start(small_config(**overrides))
        trainer.global_steps = 1
        return trainer

    yield build
    for runner in runners:
        runner.close()
