"""When the trainer's devices are lent to generation, and that they come back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kitlib.trainer.hybrid import SwitchPolicy

CONFIG = SimpleNamespace(
    switch_threshold_ratio=0.5,
    switch_threshold_step_up=0.25,
    switch_threshold_step_down=0.25,
    switch_threshold_release_steps=2,
    switch_cost_window_size=2,
)


def policy(ratio: float = 0.5) -> SwitchPolicy:
    made = SwitchPolicy(CONFIG, train_batch_size=16, parameter_sync_step=4, scaling_factor=2.0)
    made.ratio = ratio
    return made


@pytest.mark.parametrize(("ratio", "threshold"), [(0.0, 4), (0.3, 5), (0.5, 8), (1.0, 16)])
def test_the_threshold_lies_between_a_mini_batch_and_the_batch(ratio: float, threshold: int) -> None:
    assert policy(ratio).threshold == threshold


def test_the_threshold_rises_after_idle_steps_and_falls_after_calm_ones() -> None:
    made = policy()
    ratios = []
    for had_idle in (True, True, True, True, False, False, False, False, False, False):
        made.adapt(had_idle)
        ratios.append(made.ratio)
    assert ratios == [0.5, 0.75, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.25, 0.25]


def test_devices_are_lent_when_the_wait_costs_more_than_the_switches() -> None:
    made = policy()
    assert made.decide(num_sampleable=8, is_last_step=False)[0] is False  # the threshold is met
    assert made.decide(num_sampleable=4, is_last_step=True)[0] is False
    assert made.decide(num_sampleable=4, is_last_step=False)[0] is True  # nothing known yet: try
    made.note_wait(seconds=8.0, num_prompts=4)
    made.costs["to_rollout"] += [1.0]
    assert made.decide(4, False)[0] is True  # the cost of the way back is not known yet
    made.costs["to_trainer"] += [2.0]
    lend, metrics = made.decide(4, False)  # 4 prompts * 2 s * (1 - 1/2) = 4 s against 3 s
    assert lend
    assert metrics["separate_async/decision/remaining"] == 4
    assert metrics["separate_async/decision/per_sample_time_seconds"] == 2.0
    assert metrics["separate_async/decision/effective_switch_cost_seconds"] == 3.0
    assert made.decide(6, False)[0] is False  # 2 s against 3 s


def test_only_the_last_switches_count() -> None:
    made = policy()
    made.costs["to_rollout"] += [9.0, 1.0, 1.0]
    made.costs["to_trainer"] += [1.0]
    assert made.decide(0, False)[1]["separate_async/decision/effective_switch_cost_seconds"] == 2.0
