"""The optimal token baseline: a baseline for every position, weighted by how much the gradient varies up to there.

verl 0.9.1: trainer/ppo/core_algos.py, compute_optimal_token_baseline_advantage and
compute_multi_turn_optimal_token_baseline_advantage.

For position t of group g, with G the reward to go:

    b_t = sum_g G_it W_it / sum_g W_it        W_it = sum_{s <= t} m_is (1 - 2 pi_is + sum over vocabulary of pi^2)

1 - 2 pi + sum pi^2 is the squared length of the gradient of log softmax with respect to the logits: W is how much
gradient row i has gathered up to t. With `rollout_is_weights` rho, each term is multiplied by rho^2. sum_pi_squared
is a field that the actor computes on request (actor.calculate_sum_pi_squared).

The form of the baseline is that of Greensmith, Bartlett and Baxter, "Variance reduction techniques for gradient
estimates in reinforcement learning" (JMLR 5, 2004), with a squared gradient that adds up over the tokens so far.

The two estimators differ in what a position is: `optimal_token_baseline` counts all tokens of the response, tool
tokens included, `tir_optimal_token_baseline` (tool-integrated reasoning) the unmasked ones only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kitlib.algos.advantage import register_adv_est
from kitlib.algos.advantage_token import reward_to_go
from kitlib.algos.groups import Groups


@register_adv_est("optimal_token_baseline")
@torch.no_grad()
def compute_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any] | Tensor,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
) -> tuple[Tensor, Tensor]:
    """Optimal token baseline (see the module): the reward to go minus a baseline for each position of a group.

        A_it = m_it * (G_it - b_t)        b_t = sum_g G_it W_it / sum_g W_it

    Returns (A, G), all tensors [num_rows, j1].

    handle_zero_tail: where the longest row of a group is alone, beyond the length of the second longest, b is 0: a
    row is no baseline for itself. A group of one row has b = 0 throughout.
    """
    returns = reward_to_go(token_level_rewards, response_mask)
    gathered = _gathered_gradient(old_log_probs, sum_pi_squared, response_mask, rollout_is_weights)
    groups = Groups(index, len(returns), returns.device)
    baseline = _baseline(returns, gathered, response_mask, groups, handle_zero_tail, epsilon)
    return (returns - baseline) * response_mask, returns


@register_adv_est("tir_optimal_token_baseline")
@torch.no_grad()
def compute_multi_turn_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any] | Tensor,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
) -> tuple[Tensor, Tensor]:
    """As optimal_token_baseline, with positions counted over unmasked tokens; rows without any belong to no group."""
    returns = reward_to_go(token_level_rewards, response_mask)
    gathered = _gathered_gradient(old_log_probs, sum_pi_squared, response_mask, rollout_is_weights)
    # Unmasked tokens first, in order: position k is then the k-th token that the policy chose.
    order = (~response_mask.bool()).long().sort(dim=1, stable=True).indices
    packed_mask = response_mask.gather(1, order)
    rows = response_mask.any(dim=1)
    names = index.tolist() if isinstance(index, Tensor) else list(index)
    names = [
        name if kept else ("no tokens", row) for row, (name, kept) in enumerate(zip(names, rows.tolist(), strict=True))
    ]
    groups = Groups(names, len(returns), returns.device)
    packed = _baseline(
        returns.gather(1, order), gathered.gather(1, order), packed_mask, groups, handle_zero_tail, epsilon
    )
    baseline = torch.zeros_like(returns).scatter(1, order, packed)
    return (returns - baseline) * response_mask, returns


def _gathered_gradient(
    log_probs: Tensor, sum_pi_squared: Tensor, response_mask: Tensor, rollout_is_weights: Tensor | None
) -> Tensor:
    """W, [num_rows, j1]."""
    squared_norm = 1 - 2 * log_probs.exp() + sum_pi_squared
    if rollout_is_weights is not None:
        squared_norm = squared_norm * rollout_is_weights**2
    return (squared_norm * response_mask).cumsum(dim=-1)


def _baseline(
    returns: Tensor, gathered: Tensor, mask: Tensor, groups: Groups, handle_zero_tail: bool, epsilon: float
) -> Tensor:
    """b of every row and position, [num_rows, j1]."""
    weights = gathered * mask
    numerator, denominator = _group_sum(returns * weights, groups), _group_sum(weights, groups)
    baseline = (numerator / (denominator + epsilon)) * (groups.size() > 1).unsqueeze(-1)
    if handle_zero_tail:
        baseline = baseline.masked_fill(_lonely_tail(mask.sum(dim=-1), groups, mask.shape[1]), 0.0)
    return baseline.to(returns.dtype)


def _group_sum(values: Tensor, groups: Groups) -> Tensor:
    """Sum over the rows of a group at each position, given back to every row, [num_rows, j1]."""
    sums = values.new_zeros(len(groups.names), values.shape[1]).index_add_(0, groups.of_row, values)
    return sums[groups.of_row]


def _lonely_tail(num_tokens: Tensor, groups: Groups, width: int) -> Tensor:
    """True where the longest row of a group is alone: from the length of the second longest on, bool [num_rows, j1]."""
    lonely = torch.zeros(len(num_tokens), width, dtype=torch.bool, device=num_tokens.device)
    for number in range(len(groups.names)):
        rows = (groups.of_row == number).nonzero()[:, 0]
        if len(rows) > 1:
            longest, second = num_tokens[rows].topk(2).values.tolist()
            if longest > second:
                lonely[rows[num_tokens[rows].argmax()], int(second) :] = True
    return lonely
