"""Estimators with an advantage of its own for every token.

verl 0.9.1: trainer/ppo/core_algos.py, compute_gae_advantage_return, compute_reinforce_plus_plus_outcome_advantage,
compute_remax_outcome_advantage. Shapes: all tensors and both results [num_rows, j1] unless said otherwise.

A masked token (a tool's answer, or padding) was not chosen by the policy: sums over time step across it as if it were
not there.

Differs: verl's reinforce_plus_plus reads gamma from its config argument, here it is a parameter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kitlib.algos.advantage import register_adv_est
from kitlib.algos.masked import masked_whiten


@register_adv_est("gae")
@torch.no_grad()
def compute_gae_advantage_return(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16), whitened over the batch.

        delta_t = r_t + gamma V_{t+1} - V_t
        A_t     = delta_t + gamma lam A_{t+1}
        return  = A + V            before whitening: the critic's target

    t + 1 is the next unmasked token; beyond the last one V and A are 0. On masked tokens the result is of no meaning.
    """
    mask = response_mask.to(values.dtype)
    next_value = torch.zeros_like(values[:, 0])  # [num_rows]
    advantage = torch.zeros_like(next_value)
    columns = []
    for t in reversed(range(values.shape[1])):
        delta = token_level_rewards[:, t] + gamma * next_value - values[:, t]
        kept = mask[:, t]
        advantage = kept * (delta + gamma * lam * advantage) + (1 - kept) * advantage
        next_value = kept * values[:, t] + (1 - kept) * next_value
        columns.append(advantage)
    advantages = torch.stack(columns[::-1], dim=1)
    return masked_whiten(advantages, response_mask), advantages + values


@register_adv_est("reinforce_plus_plus")
@torch.no_grad()
def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, gamma: float = 1.0
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ (arXiv:2501.03262): the discounted reward to go, whitened over the batch. No groups, no critic.

        G_t = r_t + gamma G_{t+1}        A = m * whiten(m * G)

    Returns (A, m * G).
    """
    mask = response_mask.to(token_level_rewards.dtype)
    to_go = torch.zeros_like(token_level_rewards[:, 0])  # [num_rows]
    columns = []
    for t in reversed(range(token_level_rewards.shape[1])):
        here = token_level_rewards[:, t] + gamma * to_go
        columns.append(here * mask[:, t])
        to_go = torch.where(mask[:, t].bool(), here, to_go)
    returns = torch.stack(columns[::-1], dim=1)
    return masked_whiten(returns, response_mask) * response_mask, returns


@register_adv_est("remax")
@torch.no_grad()
def compute_remax_outcome_advantage(
    token_level_rewards: Tensor, reward_baselines: Tensor, response_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """ReMax (arXiv:2310.10505): the reward to go minus the reward of the greedy answer to the same prompt.

        A_t = sum_{s >= t} m_s r_s - m_t b        reward_baselines b [num_rows]

    Returns (A, reward to go).
    """
    returns = reward_to_go(token_level_rewards, response_mask)
    return returns - reward_baselines.unsqueeze(-1) * response_mask, returns


def reward_to_go(token_level_rewards: Tensor, response_mask: Tensor) -> Tensor:
    """sum_{s >= t} m_s r_s, [num_rows, j1]."""
    return (token_level_rewards * response_mask).flip(-1).cumsum(-1).flip(-1)
