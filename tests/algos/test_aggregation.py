"""agg_loss against verl's numbers, and the promise that the cut of a batch does not matter."""

from __future__ import annotations

import pytest
import torch

from kitlib.algos import AlgoError, agg_loss
from tests.golden.cases import Case, assert_close, cases


@pytest.mark.parametrize("case", cases("agg/"))
def test_agg_loss_matches_verl(case: Case) -> None:
    assert_close(agg_loss(**case.tensors(), **case.args), case.expected("loss"), "loss")


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_pieces_add_up_to_the_whole(mode: str) -> None:
    torch.manual_seed(0)
    losses, mask = torch.randn(6, 7, dtype=torch.float64), torch.rand(6, 7) > 0.4
    counts = {"batch_num_tokens": mask.sum().item(), "global_batch_size": 6, "loss_scale_factor": 7}
    whole = agg_loss(losses, mask, mode, **counts)
    pieces = sum(agg_loss(losses[rows], mask[rows], mode, **counts) for rows in ([0], [1, 4], [2, 3, 5]))
    torch.testing.assert_close(whole, pieces)
    two_ranks = (
        sum(agg_loss(losses[rows], mask[rows], mode, dp_size=2, **counts) for rows in ([0, 1, 2], [3, 4, 5])) / 2
    )
    torch.testing.assert_close(whole, two_ranks)


def test_a_masked_nan_does_not_reach_the_loss() -> None:
    losses, mask = torch.tensor([[1.0, float("nan")]]), torch.tensor([[1, 0]])
    for mode in ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"):
        assert agg_loss(losses, mask, mode).item() == pytest.approx(1.0)


def test_wrong_arguments_are_named() -> None:
    ones = torch.ones(2, 2)
    with pytest.raises(AlgoError, match="loss_agg_mode='mean' is not one of token-mean"):
        agg_loss(ones, ones, "mean")
    with pytest.raises(AlgoError, match="dp_size=2 needs batch_num_tokens"):
        agg_loss(ones, ones, "token-mean", dp_size=2)
    with pytest.raises(AlgoError, match="dp_size=2 needs global_batch_size"):
        agg_loss(ones, ones, "seq-mean-token-sum", dp_size=2)
