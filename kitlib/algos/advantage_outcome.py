"""Estimators with one reward a row: every unmasked token of a row gets the same advantage.

verl 0.9.1: trainer/ppo/core_algos.py, compute_rloo_outcome_advantage, compute_rloo_vectorized_outcome_advantage,
compute_opo_outcome_advantage, compute_gpg_outcome_advantage, compute_grpo_passk_outcome_advantage,
compute_reinforce_plus_plus_baseline_outcome_advantage, compute_gdpo_outcome_advantage.

R_i = sum_t r_it is the reward of row i, g its group with n rows, m_it its mask. Shapes as in advantage.py:
token_level_rewards, response_mask and both results [num_rows, j1]; index names the group of each row.

Differs: verl's grpo_passk reads norm_adv_by_std_in_grpo from its config argument, here it is a parameter; gdpo gets
the reward parts as columns of `data` instead of a DataProto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kitlib.algos.advantage import register_adv_est
from kitlib.algos.errors import AlgoError
from kitlib.algos.groups import Groups
from kitlib.algos.masked import masked_whiten

Index = Sequence[Any] | Tensor


def _scores(token_level_rewards: Tensor, index: Index) -> tuple[Tensor, Groups]:
    scores = token_level_rewards.sum(dim=-1)  # [num_rows]
    return scores, Groups(index, len(scores), scores.device)


def _spread(row_advantage: Tensor, token_level_rewards: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor]:
    """One number a row to every unmasked token, as advantages and as returns."""
    advantages = row_advantage.to(token_level_rewards.dtype).unsqueeze(-1) * response_mask
    return advantages, advantages


@register_adv_est("rloo")
@torch.no_grad()
def compute_rloo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index
) -> tuple[Tensor, Tensor]:
    """REINFORCE leave-one-out (arXiv:2402.14740): the baseline of a row is the mean of the others in its group.

        A_it = m_it * (R_i - mean of the other R in g) = m_it * n / (n - 1) * (R_i - mean_g R)

    A group of one row has no others: A = R.
    """
    scores, groups = _scores(token_level_rewards, index)
    size = groups.size()
    factor = torch.where(size > 1, size / (size - 1).clamp(min=1), 1.0)
    return _spread(factor * (scores - groups.baseline_mean(scores)), token_level_rewards, response_mask)


@register_adv_est("rloo_vectorized")
@torch.no_grad()
def compute_rloo_vectorized_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index
) -> tuple[Tensor, Tensor]:
    """As rloo (arXiv:2402.14740), but a group of one row gets A = 0.

    In verl the two differ in this as well, not only in speed.
    """
    advantages, _ = compute_rloo_outcome_advantage(token_level_rewards, response_mask, index)
    _, groups = _scores(token_level_rewards, index)
    advantages = advantages * (groups.size() > 1).unsqueeze(-1)
    return advantages, advantages


@register_adv_est("opo")
@torch.no_grad()
def compute_opo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index
) -> tuple[Tensor, Tensor]:
    """On-policy optimal baseline (OPO, arXiv:2505.23585): the baseline weighs rewards by length.

        A_it = m_it * (R_i - sum_g L R / sum_g L)        L_i = sum_t m_it

    Longer responses have gradients of more variance. A group of one row keeps A = R.
    """
    scores, groups = _scores(token_level_rewards, index)
    num_tokens = response_mask.sum(dim=-1)
    # A group without a token (padding rows) has no baseline; the clamp keeps it from being 0 / 0.
    baseline = groups.sum(num_tokens * scores) / groups.sum(num_tokens).clamp(min=1)
    baseline = torch.where(groups.size() > 1, baseline, 0.0)
    return _spread(scores - baseline, token_level_rewards, response_mask)


@register_adv_est("gpg")
@torch.no_grad()
def compute_gpg_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index, f_norm: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Group policy gradient (GPG, arXiv:2504.02546): centred rewards, scaled up for the rows without reward.

        A_it = m_it * (B / M) * (R_i - mean_g R) / f_norm

    with B rows in the batch, M of them with R != 0.
    """
    scores, groups = _scores(token_level_rewards, index)
    alpha = len(scores) / torch.count_nonzero(scores).clamp(min=1)
    return _spread(alpha * (scores - groups.baseline_mean(scores)) / f_norm, token_level_rewards, response_mask)


@register_adv_est("grpo_passk")
@torch.no_grad()
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[Tensor, Tensor]:
    """Pass@k training (arXiv:2503.19595): only the best row of a group learns, by its lead over the second best.

        A_it = m_it * (R_i - second best R of g) [/ (std_g R + epsilon)]    for the best row of g, else 0

    Raises AlgoError for a group of one row, and so for a batch with exactly one padding row.
    """
    scores, groups = _scores(token_level_rewards, index)
    row_advantage = torch.zeros_like(scores)
    for number, name in enumerate(groups.names):
        rows = (groups.of_row == number).nonzero()[:, 0]
        if len(rows) < 2:
            raise AlgoError(f"algorithm.adv_estimator=grpo_passk compares rows of a group, but {name!r} has one row")
        best, second = scores[rows].topk(2).values
        row_advantage[rows[scores[rows].argmax()]] = best - second
    if norm_adv_by_std_in_grpo:
        row_advantage = row_advantage / (groups.std(scores) + epsilon)
    return _spread(row_advantage, token_level_rewards, response_mask)


@register_adv_est("reinforce_plus_plus_baseline")
@torch.no_grad()
def compute_reinforce_plus_plus_baseline_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ with a group baseline (arXiv:2501.03262): centre in the group, whiten over the batch.

        A_it = m_it * whiten(m_it * (R_i - mean_g R))

    with mean and variance over all unmasked tokens of the batch.
    """
    scores, groups = _scores(token_level_rewards, index)
    centred, _ = _spread(scores - groups.baseline_mean(scores), token_level_rewards, response_mask)
    advantages = masked_whiten(centred, response_mask) * response_mask
    return advantages, advantages


@register_adv_est("gdpo")
@torch.no_grad()
def compute_gdpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    data: Mapping[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """Group reward-decoupled normalisation (GDPO, arXiv:2601.05242): each part of the reward is normalised on its own.

        A_it = m_it * whiten(sum_k w_k * GRPO(R_k))

    k runs over algorithm.gdpo_reward_keys, w are algorithm.gdpo_reward_weights or 1.

    `data` holds the part R_k of each row as a column [num_rows] under its key. Without gdpo_reward_keys the whole
    reward is the only part.
    """
    scores, groups = _scores(token_level_rewards, index)
    keys = getattr(config, "gdpo_reward_keys", None)
    parts = [scores] if not keys else [_reward_part(data or {}, key, scores) for key in keys]
    weights = getattr(config, "gdpo_reward_weights", None) or [1.0] * len(parts)
    total = torch.zeros_like(scores)
    for weight, part in zip(weights, parts, strict=True):
        centred = part - groups.baseline_mean(part)
        total += weight * (centred / (groups.std(part) + epsilon) if norm_adv_by_std_in_grpo else centred)
    advantages, _ = _spread(total, token_level_rewards, response_mask)
    advantages = masked_whiten(advantages, response_mask) * response_mask
    return advantages, advantages


def _reward_part(data: Mapping[str, Any], key: str, scores: Tensor) -> Tensor:
    if key not in data:
        raise AlgoError(
            f"algorithm.gdpo_reward_keys names {key!r}, which this batch does not have (it has {', '.join(data)}): "
            "the reward function has to return it"
        )
    return torch.as_tensor(data[key], dtype=scores.dtype, device=scores.device)
