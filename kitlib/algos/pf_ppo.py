"""PF-PPO: train more often on rows whose reward says something.

verl 0.9.1: trainer/ppo/core_algos.py, compute_pf_ppo_reweight_data. Source: "Policy Filtration for RLHF"
(arXiv:2409.06957).

verl draws rows and copies their columns into a new batch. In its V1 trainer only the columns of the advantage stage
are in that batch, so the advantages of the drawn rows end up under the keys of other rows. Here the row numbers are
the result, and whoever has all columns (or the keys) applies them to all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kitlib.algos.errors import AlgoError
from kitlib.algos.masked import EMPTY

REWEIGHT_METHODS = ("pow", "max_min", "max_random")


def pf_ppo_weights(scores: Tensor, reweight_method: str = "pow", weight_pow: float = 2.0) -> Tensor:
    """The weight with which each row is drawn, [num_rows], from its reward `scores` [num_rows].

        pow          |R|^weight_pow
        max_min      1 for the best and the worst rewards of the batch, else 0
        max_random   0.4 for the best reward, else 0.1

    plus 1e-8, so that a batch of zeros can be drawn from.
    """
    if reweight_method == "pow":
        weights = scores.abs().pow(weight_pow)
    elif reweight_method == "max_min":
        weights = ((scores == scores.max()) | (scores == scores.min())).to(scores.dtype)
    elif reweight_method == "max_random":
        weights = torch.where(scores == scores.max(), 0.4, 0.1)
    else:
        raise AlgoError(
            f"algorithm.pf_ppo.reweight_method={reweight_method!r} is not one of {', '.join(REWEIGHT_METHODS)}"
        )
    return weights + EMPTY


def pf_ppo_rows(
    scores: Tensor,
    reweight_method: str = "pow",
    weight_pow: float = 2.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Row numbers to train on instead of 0..num_rows-1, int64 [num_rows], drawn with replacement."""
    weights = pf_ppo_weights(scores, reweight_method, weight_pow)
    return torch.multinomial(weights, len(scores), replacement=True, generator=generator)
