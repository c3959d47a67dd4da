"""Rollout correction against verl's numbers; padding rows stay out of its metrics; settings that make no sense are
named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kitlib.algos import AlgoError
from kitlib.algos.rollout_correction import compute_rollout_correction_and_rejection_mask, correct_rollout
from tests.golden.cases import Case, assert_close, assert_metrics, cases


@pytest.mark.parametrize("case", cases("rollout_corr/"))
def test_correction_matches_verl(case: Case) -> None:
    inputs = case.tensors()
    result = compute_rollout_correction_and_rejection_mask(**inputs, **case.args)
    assert torch.equal(result.response_mask, case.expected("response_mask"))
    assert (result.weights is None) == ("rollout_is_weights" not in case.outputs)
    if result.weights is not None:
        assert_close(result.weights, case.expected("rollout_is_weights"), "weights")
    real = inputs["response_mask"].any(dim=1)
    if real.all():
        assert_metrics(result.metrics, case.metrics)
    else:  # verl lets padding rows count in means over rows; here they change nothing
        without = compute_rollout_correction_and_rejection_mask(**{k: v[real] for k, v in inputs.items()}, **case.args)
        assert result.metrics == pytest.approx(without.metrics, rel=1e-5, abs=1e-6)
        assert set(result.metrics) == set(case.metrics)


def log_probs() -> tuple[Tensor, Tensor, Tensor]:
    """Two rows of two tokens: log ratios 0, log 2 and -log 2, log 4."""
    old = torch.tensor([[1.0, 2.0], [0.5, 4.0]]).log()
    return old, torch.zeros(2, 2), torch.ones(2, 2)


def test_weights_by_hand() -> None:
    def weights(**settings: object) -> list[list[float]]:
        result = correct_rollout(*log_probs(), SimpleNamespace(**settings))
        return [[round(x, 6) for x in row] for row in result.weights.tolist()]

    assert weights(rollout_is="token", rollout_is_threshold=3.0) == [[1.0, 2.0], [0.5, 3.0]]
    assert weights(rollout_is="token", rollout_is_threshold="0.8_3") == [[1.0, 2.0], [0.0, 0.0]]
    assert weights(rollout_is="sequence", rollout_is_threshold=3.0) == [[2.0, 2.0], [2.0, 2.0]]
    normalised = weights(rollout_is="token", rollout_is_threshold=10.0, rollout_is_batch_normalize=True)
    assert torch.tensor(normalised).mean().item() == pytest.approx(1.0)


def test_rejection_by_hand() -> None:
    def kept(rule: str, threshold: str) -> list[list[float]]:
        return correct_rollout(
            *log_probs(), {"rollout_rs": rule, "rollout_rs_threshold": threshold}
        ).response_mask.tolist()

    # k1 is log of the sampler's probability over the trainer's: ratios 1, 1/2 and 2, 1/4
    assert kept("token_k1", "0.4_2.1") == [[1.0, 1.0], [1.0, 0.0]]
    assert kept("token_k1", "0.4_1.9") == [[1.0, 1.0], [0.0, 0.0]]
    assert kept("seq_sum_k1", "0.4_2.1") == [[1.0, 1.0], [1.0, 1.0]]
    assert kept("seq_max_k2", "0.3") == [[1.0, 1.0], [0.0, 0.0]]
    assert kept("token_k1,seq_max_k2", "0.6_2.1,0.3") == [[1.0, 0.0], [0.0, 0.0]]


def test_settings_that_make_no_sense_are_named() -> None:
    def refused(message: str, **settings: object) -> None:
        with pytest.raises(AlgoError, match=message):
            correct_rollout(*log_probs(), settings)

    refused("rollout_is='row' is neither", rollout_is="row")
    refused("rollout_is_threshold='high'", rollout_is="token", rollout_is_threshold="high")
    refused("rollout_is_threshold='2_1'", rollout_is="token", rollout_is_threshold="2_1")
    refused("token_k4 is not among token_k1", rollout_rs="token_k4", rollout_rs_threshold=1.0)
    refused("has 0 threshold.s. for 1 rule", rollout_rs="token_k1")
    refused("token_k2 takes one upper bound", rollout_rs="token_k2", rollout_rs_threshold="0.5_2")
    with pytest.raises(AlgoError, match="zero everywhere"):
        correct_rollout(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2), {})
