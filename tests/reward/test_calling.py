"""Reward functions that fail: an error that ends the run, or a score that is counted and named."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from kitlib.reward import RewardError
from tests.reward.test_reward_loop import Output, config_for, score, worker, write

SLOW = (
    "import time\ndef compute_score(extra_info, **kwargs):\n    time.sleep(extra_info.get('nap', 0))\n    return 1.0\n"
)


def failing(path: Path, error_score: float | None = None, timeout: float | None = None) -> Any:
    config = config_for(path)
    config.kitlib.reward_error_score, config.kitlib.reward_timeout = error_score, timeout
    return worker(config)


def nap(seconds: float) -> Output:
    return Output(extra_fields={"nap": seconds})


def test_a_function_that_takes_too_long_ends_the_run_by_name(tmp_path: Path) -> None:
    reward = failing(write(tmp_path, SLOW), timeout=0.1)
    assert score(reward)[0] == 1.0
    began = time.perf_counter()
    with pytest.raises(RewardError, match=r"gave no answer in 0.1 s \(kitlib.reward_timeout\) for trajectory u1_3"):
        score(reward, output=nap(2.0))
    assert time.perf_counter() - began < 1.5  # nobody waits for the thread


def test_an_async_function_that_takes_too_long_is_cancelled(tmp_path: Path) -> None:
    path = write(tmp_path, "import asyncio\nasync def compute_score(**kwargs):\n    await asyncio.sleep(30)\n")
    with pytest.raises(RewardError, match="gave no answer in 0.05 s"):
        score(failing(path, timeout=0.05))


def test_with_an_error_score_failures_are_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reward = failing(write(tmp_path, SLOW), error_score=-1.0, timeout=0.1)
    with caplog.at_level(logging.WARNING):
        value, extra = score(reward, output=nap(0.5))
    assert value == -1.0
    assert extra == {"acc": -1.0, "reward_error": "gave no answer in 0.1 s (kitlib.reward_timeout)"}
    assert "u1_3" in caplog.text and "my_reward.py" in caplog.text
    reward.function = lambda **kwargs: 1 / 0
    assert score(reward)[1] == {"acc": -1.0, "reward_error": "raised ZeroDivisionError: division by zero"}
    assert reward.failures.take() == {"reward/num_timeouts": 1, "reward/num_exceptions": 1}
    assert reward.failures.take() == {"reward/num_timeouts": 0, "reward/num_exceptions": 0}


def test_a_time_out_of_the_functions_own_is_an_exception(tmp_path: Path) -> None:
    reward = failing(write(tmp_path, "def compute_score(**kwargs):\n    raise TimeoutError('server')\n"), 0.0, 5.0)
    assert score(reward)[1]["reward_error"] == "raised TimeoutError: server"
    assert reward.failures.take()["reward/num_exceptions"] == 1


@pytest.mark.parametrize("body", ["return float('nan')", "return 'text'", "return {'acc': 1.0}"])
def test_a_bad_number_ends_the_run_whatever_the_error_score(tmp_path: Path, body: str) -> None:
    with pytest.raises(RewardError, match="u1_3"):
        score(failing(write(tmp_path, f"def compute_score(**kwargs):\n    {body}\n"), error_score=0.0))


def test_sessions_are_scored_side_by_side(tmp_path: Path) -> None:
    reward = failing(write(tmp_path, SLOW))
    row = {"uid": "u", "session_id": 0, "data_source": "x", "reward_model": {"ground_truth": "1"}}

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(reward.compute_score([nap(0.3)], row) for _ in range(20)))

    began = time.perf_counter()
    assert [value for value, _ in asyncio.run(all_of_them())] == [1.0] * 20
    assert time.perf_counter() - began < 3.0  # one after the other they would take 6 seconds
