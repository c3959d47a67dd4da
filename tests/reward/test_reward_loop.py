"""Scoring one trajectory: which function, what it gets, and what it may give back."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from kitlib.reward import RewardError, RewardLoopWorker, default_compute_score, load_reward_fn
from kitlib.user_code import UserCodeError

ROW = {
    "uid": "u1",
    "session_id": 3,
    "data_source": "kitlib/mult_tool",
    "reward_model": {"ground_truth": "708"},
    "extra_info": {"split": "train"},
}


@dataclass
class Output:
    response_ids: list[int] = field(default_factory=lambda: [1])
    num_turns: int | None = 2
    extra_fields: dict[str, Any] = field(default_factory=dict)


def config_for(path: Path | None, name: str = "compute_score", **kwargs: Any) -> Any:
    custom = {"path": path and str(path), "name": name, **kwargs}
    own = {"reward_timeout": None, "reward_error_score": None}
    return OmegaConf.create({"reward": {"custom_reward_function": custom}, "kitlib": own})


def write(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "my_reward.py"
    path.write_text(body)
    return path


def worker(config: Any, text: str = "####708") -> RewardLoopWorker:
    return RewardLoopWorker(config, SimpleNamespace(decode=lambda ids, skip_special_tokens: text))


def score(reward_worker: RewardLoopWorker, row: dict[str, Any] = ROW, output: Output | None = None) -> Any:
    return asyncio.run(reward_worker.compute_score([Output([0]), output or Output()], row))


def test_without_a_path_the_rules_score() -> None:
    config = config_for(None)
    assert load_reward_fn(config) is default_compute_score
    assert score(worker(config)) == (1.0, {"acc": 1.0})
    assert score(worker(config, "####1")) == (0.0, {"acc": 0.0})


def test_function_gets_the_whole_story_and_extra_info_stays_as_it_was(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "def mine(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):\n"
        "    return {'score': bonus, 'seen': (data_source, solution_str, ground_truth, extra_info)}\n",
    )
    config = config_for(path, "mine", reward_kwargs={"bonus": 0.5})
    value, extra = score(worker(config), output=Output(num_turns=4, extra_fields={"tool_rewards": [1.0]}))
    info = {"split": "train", "tool_rewards": [1.0], "num_turns": 4}
    assert value == 0.5
    assert extra["score"] == 0.5
    assert extra["seen"] == ("kitlib/mult_tool", "####708", "708", info)
    assert ROW["extra_info"] == {"split": "train"}


def test_a_custom_function_does_not_run_on_the_event_loop(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "import threading\ndef compute_score(**kwargs):\n    return {'score': 1, 'thread': threading.get_ident()}\n",
    )
    assert score(worker(config_for(path)))[1]["thread"] != threading.get_ident()


@pytest.mark.parametrize("head", ["async def compute_score(**kwargs):", "def compute_score(**kwargs):"])
def test_async_functions_and_functions_that_return_awaitables(tmp_path: Path, head: str) -> None:
    path = write(tmp_path, f"async def two():\n    return 2.0\n{head}\n    return two()\n")
    if head.startswith("async"):
        path.write_text(path.read_text().replace("return two()", "return await two()"))
    assert score(worker(config_for(path))) == (2.0, {"acc": 2.0})


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return 1 / 0", "raised ZeroDivisionError: division by zero"),
        ("return float('nan')", "returned nan"),
        ("return {'score': float('inf')}", "returned inf"),
        ("return None", "returned None, which is no number"),
        ("return {'acc': 1.0}", "returned a dict without 'score'"),
    ],
)
def test_bad_scores_name_trajectory_function_value_and_way_out(tmp_path: Path, body: str, what: str) -> None:
    path = write(tmp_path, f"def compute_score(**kwargs):\n    {body}\n")
    with pytest.raises(RewardError) as caught:
        score(worker(config_for(path)))
    message = str(caught.value)
    parts = ("compute_score", "my_reward.py", what, "u1_3", "kitlib/mult_tool", "reward.custom_reward_function.path")
    for part in parts:
        assert part in message


@pytest.mark.parametrize("lacking", ["data_source", "reward_model"])
def test_a_row_without_ground_truth_names_the_column(lacking: str) -> None:
    row = {name: value for name, value in ROW.items() if name != lacking}
    with pytest.raises(RewardError, match=rf"u1_3 .* has no {lacking}"):
        score(worker(config_for(None)), row)


def test_a_file_or_name_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"reward\.custom_reward_function\.path=.*nowhere\.py: no such file"):
        load_reward_fn(config_for(tmp_path / "nowhere.py"))
    path = write(tmp_path, "def other(): pass\n")
    with pytest.raises(UserCodeError, match=r"defines no 'compute_score', only other"):
        load_reward_fn(config_for(path))


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        path = write(tmp_path, f"def compute_score(**kwargs): return {value}  # {'x' * int(value)}\n")
        assert score(worker(config_for(path)))[0] == value


def test_a_file_that_raises_names_the_cause(tmp_path: Path) -> None:
    path = write(tmp_path, "import no_such_package\n")
    with pytest.raises(UserCodeError, match="ModuleNotFoundError: No module named 'no_such_package'"):
        load_reward_fn(config_for(path))


def test_a_name_that_is_no_function(tmp_path: Path) -> None:
    path = write(tmp_path, "compute_score = 3\n")
    with pytest.raises(RewardError, match="3 in .* is not a function"):
        load_reward_fn(config_for(path))
