"""PF-PPO's weights by hand, and that rows are drawn by them."""

from __future__ import annotations

import pytest
import torch

from kitlib.algos import AlgoError
from kitlib.algos.pf_ppo import pf_ppo_rows, pf_ppo_weights

SCORES = torch.tensor([-2.0, 0.0, 1.0, 1.0])


def test_weights_by_hand() -> None:
    expected = {"pow": [4.0, 0.0, 1.0, 1.0], "max_min": [1.0, 0.0, 1.0, 1.0], "max_random": [0.1, 0.1, 0.4, 0.4]}
    for method, weights in expected.items():
        torch.testing.assert_close(pf_ppo_weights(SCORES, method), torch.tensor(weights), rtol=1e-6, atol=1e-7)
    with pytest.raises(AlgoError, match="reweight_method='min'"):
        pf_ppo_weights(SCORES, "min")


def test_rows_are_drawn_by_weight() -> None:
    rows = pf_ppo_rows(SCORES.repeat(1000), generator=torch.Generator().manual_seed(0)) % 4
    share = torch.bincount(rows, minlength=4) / 4000
    torch.testing.assert_close(share, torch.tensor([4.0, 0.0, 1.0, 1.0]) / 6, rtol=0, atol=0.03)
    assert pf_ppo_rows(torch.zeros(3)).shape == (3,)
