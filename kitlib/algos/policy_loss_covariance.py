"""Losses that hold back the few tokens which drive the entropy down.

verl 0.9.1: trainer/ppo/core_algos.py, compute_policy_loss_clip_cov, compute_policy_loss_kl_cov. Source: "The Entropy
Mechanism of Reinforcement Learning for Reasoning Language Models" (arXiv:2505.22617).

The entropy of a policy falls with the covariance of log-probability and advantage, and most of that sits in a handful
of tokens:

    cov = (A - mean A) * (log pi - mean log pi)        means over the unmasked tokens of this call

Signature and shapes as in policy_loss.py. Which tokens are held back depends on the rows of the call, hence on the
micro-batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kitlib.algos.errors import AlgoError
from kitlib.algos.masked import masked_mean
from kitlib.algos.policy_loss import LossConfig, aggregated, register_policy_loss


@register_policy_loss("clip_cov")
def compute_policy_loss_clip_cov(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Clip-Cov: PPO's clipped loss without a random choice of tokens of high covariance.

    Of the unmasked tokens that PPO does not clip and whose cov lies between policy_loss.clip_cov_lb and clip_cov_ub,
    clip_cov_ratio * (number of unmasked tokens), at least one, are taken out. Draws from torch's global generator.

    Metrics: actor/pg_clipfrac is the share of tokens taken out, actor/ppo_kl as in policy_loss.py.
    """
    config = config or LossConfig()
    low, high = config.clip_range()
    share = config.setting("clip_cov_ratio", 0.0002)
    if share <= 0:
        raise AlgoError(
            f"actor.policy_loss.clip_cov_ratio={share} must be above 0: it is the share of tokens to take out"
        )
    mask = response_mask.bool()

    log_ratio = log_prob - old_log_prob
    ratio = torch.exp(log_ratio)
    unclipped, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high)
    with torch.no_grad():
        cov = (advantages - masked_mean(advantages, mask)) * (log_prob - masked_mean(log_prob, mask))
        high_cov = (cov > config.setting("clip_cov_lb", 1.0)) & (cov < config.setting("clip_cov_ub", 5.0))
        candidates = (high_cov & mask & ~(clipped > unclipped)).nonzero()  # [num_candidates, 2]
        num_out = max(int(share * mask.sum().item()), 1)
        out = candidates[torch.randperm(len(candidates))[:num_out]]
        kept = torch.ones_like(advantages).index_put_((out[:, 0], out[:, 1]), torch.tensor(0.0).to(advantages))
    losses = torch.maximum(unclipped, clipped) * kept
    loss = aggregated(losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, {
        "actor/pg_clipfrac": masked_mean((kept == 0).float(), mask).item(),
        "actor/ppo_kl": masked_mean(-log_ratio, mask).item(),
    }


@register_policy_loss("kl_cov")
def compute_policy_loss_kl_cov(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """KL-Cov: an unclipped loss, with a KL penalty on the tokens of highest covariance.

        l = -A r                            most tokens
        l = -A r + ppo_kl_coef * |log r|    the share policy_loss.kl_cov_ratio with the highest cov, at least one

    Metrics: actor/ppo_kl is the mean of |log r|.
    """
    config = config or LossConfig()
    share, coefficient = config.setting("kl_cov_ratio", 0.0002), config.setting("ppo_kl_coef", 1.0)
    if share <= 0:
        raise AlgoError(
            f"actor.policy_loss.kl_cov_ratio={share} must be above 0: it is the share of tokens to penalise"
        )
    mask = response_mask.bool()
    log_ratio = log_prob - old_log_prob
    losses = -advantages * torch.exp(log_ratio)
    with torch.no_grad():
        chosen_advantages, chosen_log_probs = advantages[mask], log_prob[mask]  # [num_tokens]
        cov = (chosen_advantages - chosen_advantages.mean()) * (chosen_log_probs - chosen_log_probs.mean())
        penalised = torch.zeros_like(cov)
        if len(cov):
            penalised[cov.topk(max(1, int(len(cov) * share))).indices] = coefficient
        weight = torch.zeros_like(losses).masked_scatter(mask, penalised)
    losses = losses + weight * log_ratio.abs()
    loss = aggregated(losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, {"actor/ppo_kl": masked_mean(log_ratio.abs(), mask).item()}
