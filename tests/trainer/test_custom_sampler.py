"""A sampler that the config names: it is built, it samples, and it hears of dead background tasks as the others do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kitlib.trainer.base import PPOTrainer
from kitlib.user_code import UserCodeError

SAMPLER = """
from kitlib.replay_buffer import ReplayBuffer

class Newest(ReplayBuffer):
    pass
"""


@pytest.fixture
def trainer(start: Callable[..., PPOTrainer], tmp_path: Path) -> PPOTrainer:
    file = tmp_path / "newest.py"
    file.write_text(SAMPLER, encoding="utf-8")
    sampler = "trainer__v1__sampler"
    return start(
        **{
            f"{sampler}__custom_sampler__path": str(file),
            f"{sampler}__custom_sampler__name": "Newest",
            f"{sampler}__sampler_kwargs": {"taste": 3},
        }
    )


def test_it_is_built_with_the_settings_of_the_config_and_samples(trainer: PPOTrainer) -> None:
    buffer = trainer.replay_buffer
    assert type(buffer).__name__ == "Newest"
    assert (buffer.trainer_mode, buffer.max_off_policy_strategy, dict(buffer.sampler_kwargs)) == (
        "sync",
        "drop",
        {"taste": 3},
    )
    trainer.prepare_step()
    assert len(trainer.sample()) == 16


def test_a_dead_task_ends_its_wait(trainer: PPOTrainer) -> None:
    trainer.agent_loop_manager.ledger.declare_fatal(ValueError("no reward"), "a_0_0")
    with pytest.raises(Exception, match="no reward"):
        trainer.sample()


def test_it_tells_a_slow_prompt_from_a_dead_one(trainer: PPOTrainer) -> None:
    trainer.tq.kv_put("u1", "train", tag={"is_prompt": True, "status": "running", "global_steps": 1})
    trainer.replay_buffer.give_up_after = 0.05
    with pytest.raises(Exception, match="no task of u1 is running any more"):
        trainer.sample(1)


def test_a_name_that_the_file_lacks_is_refused(start: Callable[..., PPOTrainer], tmp_path: Path) -> None:
    file = tmp_path / "newest.py"
    file.write_text(SAMPLER, encoding="utf-8")
    sampler = "trainer__v1__sampler__custom_sampler"
    with pytest.raises(UserCodeError, match="it defines no 'Oldest', only Newest"):
        start(**{f"{sampler}__path": str(file), f"{sampler}__name": "Oldest"})
