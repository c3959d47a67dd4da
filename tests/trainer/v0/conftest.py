"""V0 trainers of the small demo, closed whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kitlib.trainer.task_runner import TaskRunner
from kitlib.trainer.v0 import PPOTrainerV0
from tests.trainer.conftest import small_config


@pytest.fixture
def start_v0() -> Iterator[Callable[..., PPOTrainerV0]]:
    """`start_v0(a__b=1)` gives a V0 trainer ready for its first stage."""
    runners: list[TaskRunner] = []

    def build(**overrides: Any) -> PPOTrainerV0:
        runners.append(TaskRunner())
        trainer = runners[-1].start_v0(small_config(trainer__use_v1=False, **overrides))
        trainer.begin_step(1)
        return trainer

    yield build
    for runner in runners:
        runner.close()
