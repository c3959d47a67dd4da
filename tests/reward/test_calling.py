"""Reward functions that fail: an error that ends the run, or a score that is counted and named."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kitlib.reward import RewardError
from tests.reward.test_reward_loop import Output, config_for, score, worker, write

ASYNC_SLOW = "import asyncio\nasync def compute_score(**kwargs):\n    await asyncio.Event().wait()\n"


class Hanging:
    """A reward function that answers when it is released, and says how many calls have come back."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.num_ended = 0

    def __call__(self, **kwargs: Any) -> float:
        self.release.wait(100)
        self.num_ended += 1
        return 1.0


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    function = Hanging()
    yield function
    function.release.set()


def failing(path: Path, error_score: float | None = None, timeout: float | None = None) -> Any:
    config = config_for(path)
    config.kitlib.reward_error_score, config.kitlib.reward_timeout = error_score, timeout
    return worker(config)


def test_a_function_that_takes_too_long_ends_the_run_by_name(tmp_path: Path, hanging: Hanging) -> None:
    reward = failing(write(tmp_path, "def compute_score(**kwargs):\n    return 1.0\n"), timeout=100.0)
    assert score(reward)[0] == 1.0
    reward.timeout, reward.function = 0.1, hanging
    with pytest.raises(RewardError, match=r"gave no answer in 0.1 s \(kitlib.reward_timeout\) for trajectory u1_3"):
        score(reward)
    assert hanging.num_ended == 0  # nobody has waited for the thread


def test_an_async_function_that_takes_too_long_is_cancelled(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="gave no answer in 0.05 s"):
        score(failing(write(tmp_path, ASYNC_SLOW), timeout=0.05))


def test_with_an_error_score_failures_are_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reward = failing(write(tmp_path, ASYNC_SLOW), error_score=-1.0, timeout=0.1)
    with caplog.at_level(logging.WARNING):
        value, extra = score(reward)
    assert value == -1.0
    assert extra == {"acc": -1.0, "reward_error": "gave no answer in 0.1 s (kitlib.reward_timeout)"}
    assert "u1_3" in caplog.text and "my_reward.py" in caplog.text
    reward.timeout, reward.function = 100.0, lambda **kwargs: 1 / 0
    assert score(reward)[1] == {"acc": -1.0, "reward_error": "raised ZeroDivisionError: division by zero"}
    assert reward.failures.take() == {"reward/num_timeouts": 1, "reward/num_exceptions": 1}
    assert reward.failures.take() == {"reward/num_timeouts": 0, "reward/num_exceptions": 0}


def test_a_time_out_of_the_functions_own_is_an_exception(tmp_path: Path) -> None:
    reward = failing(write(tmp_path, "def compute_score(**kwargs):\n    raise TimeoutError('server')\n"), 0.0, 100.0)
    assert score(reward)[1]["reward_error"] == "raised TimeoutError: server"
    assert reward.failures.take()["reward/num_exceptions"] == 1


@pytest.mark.parametrize("body", ["return float('nan')", "return 'text'", "return {'acc': 1.0}"])
def test_a_bad_number_ends_the_run_whatever_the_error_score(tmp_path: Path, body: str) -> None:
    with pytest.raises(RewardError, match="u1_3"):
        score(failing(write(tmp_path, f"def compute_score(**kwargs):\n    {body}\n"), error_score=0.0))


def test_sessions_are_scored_side_by_side(tmp_path: Path) -> None:
    reward = failing(write(tmp_path, "def compute_score(**kwargs):\n    return 1.0\n"))
    together = threading.Barrier(20)
    reward.function = lambda **kwargs: float(together.wait(100) >= 0)  # one after the other they would wait for ever
    row = {"uid": "u", "session_id": 0, "data_source": "x", "reward_model": {"ground_truth": "1"}}

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(reward.compute_score([Output()], row) for _ in range(20)))

    assert [value for value, _ in asyncio.run(all_of_them())] == [1.0] * 20
