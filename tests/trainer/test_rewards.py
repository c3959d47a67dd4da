"""Rewards in the pipeline: a model beside the trainer or in its own pool, functions that fail, uneven extra info."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kitlib.config import ConfigError, load_config
from kitlib.trainer.base import PPOTrainer
from tests.reward.test_reward_model import make_reward_model
from tests.trainer.test_stages import sampled

Start = Callable[..., PPOTrainer]
MODEL = "reward.reward_model"

UNEVEN = """
import zlib
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    kind = zlib.crc32(f"{ground_truth}{extra_info['split']}{len(solution_str)}".encode()) % 3
    if kind == 0:
        return float("####" in solution_str)
    if kind == 1:
        return {"score": 0.5, "acc": 0.0, "style": 1.0, "note": "dry"}
    return {"score": 0.0, "acc": 1.0, "style": "none", "pred": "7"}
"""
FAILING = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if len(solution_str) % 2:
        raise ValueError("odd")
    return 1.0
"""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_reward_model(tmp_path_factory.mktemp("reward_model")))


def test_a_colocated_model_scores_the_sampled_batch(start: Start, model_path: str) -> None:
    trainer = start(reward__reward_model__enable=True, reward__reward_model__model_path=model_path)
    batch = sampled(trainer)
    assert "rm_scores" not in trainer.pull(batch, "rm_scores", "responses").keys()
    data = trainer.pull(trainer.compute_reward_colocate(batch), "rm_scores", "responses", "raw_prompt")
    texts = trainer.tokenizer.batch_decode(
        [row.tolist() for row in data["responses"].unbind()], skip_special_tokens=True
    )
    expected = trainer.reward_model.score(data.get("raw_prompt").tolist(), texts)
    rows = data["rm_scores"].unbind()
    assert [row[-1].item() for row in rows] == pytest.approx(expected, rel=1e-4)
    assert [row.sum().item() for row in rows] == pytest.approx(expected, rel=1e-4)


def test_a_run_with_a_colocated_model_trains_and_validates(start: Start, model_path: str) -> None:
    trainer = start(reward__reward_model__enable=True, reward__reward_model__model_path=model_path)
    trainer.global_steps = 0
    metrics = trainer.fit()
    assert "val-core/kitlib/mult_tool/reward/mean@1" in metrics
    assert "compute_reward_colocate" in {record.stage for record in trainer.stage_records}
    assert trainer.metrics["timing_s/reward"] > 0


def test_a_model_in_a_pool_of_its_own_scores_in_the_agent_loop(start: Start, model_path: str) -> None:
    trainer = start(
        reward__reward_model__enable=True,
        reward__reward_model__enable_resource_pool=True,
        reward__reward_model__model_path=model_path,
    )
    assert trainer.reward_model is None
    batch = sampled(trainer)
    scores = [row.sum().item() for row in trainer.pull(batch, "rm_scores")["rm_scores"].unbind()]
    assert len(set(scores)) > 1
    trainer.compute_advantage(trainer.compute_old_log_prob(trainer.balance_batch(batch)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "needs reward.reward_model.model_path"),
        (["reward.custom_reward_function.path=x.py"], "unset one of them"),
        (
            ["algorithm.filter_groups.enable=true"],
            "too late for algorithm.filter_groups.enable: set .*enable_resource_pool",
        ),
    ],
)
def test_a_reward_model_that_cannot_work_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([f"{MODEL}.enable=true", *overrides])


def test_failures_of_the_function_are_counted_in_the_metrics(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "failing.py"
    path.write_text(FAILING)
    trainer = start(reward__custom_reward_function__path=str(path), kitlib__reward_error_score=-1.0)
    trainer.begin_step()
    batch = trainer.step()
    trainer.end_step()
    data = trainer.pull(batch, "extra_fields", "rm_scores")
    failed = [info["reward_extra_info"].get("reward_error") for info in data.get("extra_fields").tolist()]
    metrics = trainer.compute_metrics(batch)
    assert metrics["reward/num_exceptions"] == 16 - failed.count(None) > 0
    assert metrics["reward/num_timeouts"] == 0
    assert [row.sum().item() for row in data["rm_scores"].unbind()] == [1.0 if e is None else -1.0 for e in failed]


def test_extra_info_with_other_keys_from_row_to_row(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "uneven.py"
    path.write_text(UNEVEN)
    trainer = start(
        reward__custom_reward_function__path=str(path),
        trainer__validation_data_dir=str(tmp_path / "val"),
        trainer__rollout_data_dir=str(tmp_path / "rollouts"),
        actor_rollout_ref__rollout__val_kwargs__n=3,
        actor_rollout_ref__rollout__val_kwargs__do_sample=True,
        actor_rollout_ref__rollout__val_kwargs__temperature=1.0,
        trainer__total_training_steps=1,
        trainer__test_freq=1,
    )
    trainer.global_steps = 0
    metrics = trainer.fit()
    assert any(name.startswith("val-core/kitlib/mult_tool/acc/") for name in metrics)
    rows = [json.loads(line) for line in (tmp_path / "val" / "1.jsonl").read_text().splitlines()]
    assert len(rows) == 24
    assert len({tuple(sorted(row)) for row in rows}) > 1
    assert len((tmp_path / "rollouts" / "1.jsonl").read_text().splitlines()) == 16
