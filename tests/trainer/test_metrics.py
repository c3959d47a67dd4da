"""Step metrics against verl's own numbers, and the cases where a number would mislead."""

from __future__ import annotations

import math

import pytest
import torch

from kitlib.trainer.metrics import (
    compute_data_metrics,
    compute_throughput_metrics,
    compute_timing_metrics,
    rollout_probs_diff,
    staleness_metrics,
    turn_metrics,
)
from tests.golden.cases import Case, cases


@pytest.mark.parametrize("case", cases("metrics/data"))
def test_data_metrics_are_verls(case: Case) -> None:
    data = case.tensors()
    data["token_level_scores"] = data["token_level_rewards"]
    data["prompt_length"] = data.pop("prompt_len")
    actual = compute_data_metrics(data, case.args["prompts width"], case.args["responses width"])
    actual |= turn_metrics([row % 5 for row in range(len(data["response_length"]))])
    assert set(case.metrics) <= set(actual)
    for name, value in case.metrics.items():
        assert actual[name] == pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True), name


@pytest.mark.parametrize("case", cases("metrics/debug"))
def test_rollout_probs_diff_is_verls(case: Case) -> None:
    data = case.tensors()
    actual = rollout_probs_diff(data["rollout_log_probs"], data["old_log_probs"], data["response_mask"])
    assert set(actual) == set(case.metrics)
    for name, value in case.metrics.items():
        assert actual[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_a_batch_without_response_tokens_reads_nan_and_says_aborted() -> None:
    zeros = torch.zeros(2, 1)
    data = dict.fromkeys(("token_level_scores", "token_level_rewards", "advantages", "returns", "response_mask"), zeros)
    data |= {"prompt_length": torch.tensor([3, 4]), "response_length": torch.tensor([0, 0])}
    metrics = compute_data_metrics(data, 4, 1)
    assert metrics["response/aborted_ratio"] == 1.0
    assert math.isnan(metrics["critic/score/mean"])
    assert math.isnan(rollout_probs_diff(zeros, zeros, zeros)["training/rollout_probs_diff_mean"])


def test_times_are_per_token_where_a_token_is_the_unit() -> None:
    metrics = compute_timing_metrics({"gen": 2.0, "adv": 1.0, "step": 4.0}, num_response_tokens=1000, num_tokens=4000)
    assert metrics["timing_per_token_ms/gen"] == 2.0
    assert metrics["timing_per_token_ms/adv"] == 0.25
    assert "timing_per_token_ms/step" not in metrics
    assert compute_throughput_metrics({"step": 4.0}, 4000, 2)["perf/throughput"] == 500.0


def test_staleness_counts_weight_versions() -> None:
    metrics = staleness_metrics([{"min_global_steps": 3, "max_global_steps": 5}], global_steps=7)
    assert metrics["training/off_policy/trajectory_spans/mean"] == 3
    assert metrics["training/off_policy/trajectory_staleness/mean"] == 1
    assert metrics["training/off_policy/trajectory_staleness_worst/mean"] == 3
