"""The asynchronous modes on the real parts: they train, run ahead, lend devices, and leave no thread behind."""

from __future__ import annotations

from typing import Any

import pytest

from kitlib.trainer.observers import Observer
from kitlib.trainer.task_runner import TaskRunner
from tests.trainer.conftest import small_config

COLOCATE: dict[str, Any] = {"trainer__v1__trainer_mode": "colocate_async"}
SEPARATE: dict[str, Any] = {
    "trainer__v1__trainer_mode": "separate_async",
    "trainer__v1__separate_async__parameter_sync_step": 2,
    "actor_rollout_ref__actor__ppo_mini_batch_size": 2,
    "actor_rollout_ref__rollout__nnodes": 1,
    "actor_rollout_ref__rollout__checkpoint_engine__backend": "nccl",
}


class Numbers(Observer):
    """Keeps the metrics of every step, and what is left in the queue at the end."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.markers: list[dict[str, Any]] = []

    def on_metrics(self, trainer: Any, metrics: dict[str, Any], step: int) -> None:
        if step:
            self.steps.append(dict(metrics))

    def on_fit_end(self, trainer: Any) -> None:
        self.markers = [tag for tag in trainer.tq.kv_list("train")["train"].values() if tag.get("is_prompt")]


def run(num_steps: int, **overrides: Any) -> Numbers:
    numbers = Numbers()
    TaskRunner().run(small_config(trainer__total_training_steps=num_steps, **overrides), observers=[numbers])
    assert len(numbers.steps) == num_steps
    return numbers


@pytest.mark.parametrize("overrides", [COLOCATE, SEPARATE], ids=["colocate_async", "separate_async"])
@pytest.mark.parametrize("warmup", [1.0, 1.5])
def test_generation_runs_ahead_by_the_warm_up_window(overrides: dict[str, Any], warmup: float) -> None:
    mode = overrides["trainer__v1__trainer_mode"]
    numbers = run(3, **overrides, **{f"trainer__v1__{mode}__num_warmup_batches": warmup})
    ahead = int(4 * warmup)  # train_batch_size is 4
    assert len(numbers.markers) == ahead
    assert {tag["global_steps"] for tag in numbers.markers} <= {1, 2, 3}  # a slow prompt is overtaken by quick ones
    assert all(step["actor/grad_norm"] >= 0 for step in numbers.steps)


def test_separate_async_makes_several_updates_between_two_syncs_against_one_old_policy() -> None:
    numbers = run(2, **SEPARATE, actor_rollout_ref__actor__optim__lr=0.01, actor_rollout_ref__rollout__n=16)
    assert [step["training/global_step"] for step in numbers.steps] == [1, 2]
    assert any(step["actor/ppo_kl"] != 0.0 for step in numbers.steps)  # the second update has moved from the old policy
    assert numbers.steps[0]["perf/total_num_tokens"] > 0


def test_devices_are_lent_while_there_is_too_little_to_train_on_and_come_back() -> None:
    switch = {
        "trainer__v1__separate_async__hybrid_rollout__enable_switch": True,
        "trainer__v1__separate_async__hybrid_rollout__switch_threshold_ratio": 1.0,
        "trainer__v1__separate_async__num_warmup_batches": 0.5,
    }
    numbers = run(4, **SEPARATE, **switch)
    lent = [step["separate_async/decision/should_switch_to_rollout"] for step in numbers.steps]
    assert any(lent)
    assert lent[-1] == 0.0  # the last step lends nothing
    for before, after in zip(numbers.steps, numbers.steps[1:], strict=False):
        assert ("timing_s/switch_to_rollout" in before) == ("timing_s/switch_to_trainer" in after)
