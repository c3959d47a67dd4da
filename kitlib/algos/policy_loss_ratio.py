"""Losses that bound the importance ratio in another way than PPO's clip.

verl 0.9.1: trainer/ppo/core_algos.py, compute_policy_loss_gspo, compute_policy_loss_sapo, compute_policy_loss_cispo,
compute_policy_loss_geo_mean, compute_policy_loss_dppo_tv, compute_policy_loss_dppo_kl.

Signature, shapes and metrics as in policy_loss.py: r = pi / pi_old, A the advantage, m the mask; low and high from
`config.clip_range()`; a loss a token goes through `agg_loss`, weighted by `rollout_is_weights` if given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kitlib.algos.masked import EMPTY, masked_mean
from kitlib.algos.policy_loss import LossConfig, aggregated, log_ratio_of, register_policy_loss

Loss = tuple[Tensor, dict[str, float]]


def _metrics(clipped: Tensor, log_ratio: Tensor, clipped_lower: Tensor, response_mask: Tensor) -> dict[str, float]:
    """actor/pg_clipfrac, ppo_kl and pg_clipfrac_lower from what was clipped where, all [num_rows, j1]."""
    with torch.no_grad():
        return {
            "actor/pg_clipfrac": masked_mean(clipped.float(), response_mask).item(),
            "actor/ppo_kl": masked_mean(-log_ratio, response_mask).item(),
            "actor/pg_clipfrac_lower": masked_mean(clipped_lower.float(), response_mask).item(),
        }


@register_policy_loss("gspo")
def compute_policy_loss_gspo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """Group sequence policy optimisation (arXiv:2507.18071): one ratio for a whole row, clipped as a
    whole.

        s_i  = exp(mean over unmasked t of log r_it)
        s_it = sg(s_i) * pi / sg(pi)                 value of the row, gradient of the token; at most e^10
        l_it = max(-A s_it, -A clip(s_it, 1 - low, 1 + high))
    """
    config = config or LossConfig()
    low, high = config.clip_range()
    log_ratio = log_prob - old_log_prob
    row_log_ratio = (log_ratio * response_mask).sum(dim=-1) / response_mask.sum(dim=-1).clamp(min=1)  # [num_rows]
    ratio = torch.exp((log_prob - log_prob.detach() + row_log_ratio.detach().unsqueeze(-1)).clamp(max=10.0))
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    loss = aggregated(torch.maximum(unclipped, clipped), response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, _metrics(clipped > unclipped, log_ratio, torch.zeros_like(log_ratio), response_mask)


@register_policy_loss("sapo")
def compute_policy_loss_sapo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """Soft adaptive policy optimisation (arXiv:2511.20347): a smooth gate instead of a clip.

        l = -A * (4 / tau) * sigmoid(tau * (r - 1))        tau = tau_pos where A > 0, else tau_neg

    The slope of the gate at r = 1 is 1. Always averaged as seq-mean-token-mean, whatever `loss_agg_mode` says.
    """
    config = config or LossConfig()
    log_ratio = log_ratio_of(log_prob, old_log_prob)
    tau = torch.where(advantages > 0, config.tau_pos, config.tau_neg)
    gate = torch.sigmoid(tau * (torch.exp(log_ratio) - 1.0)) * (4.0 / tau)
    loss = aggregated(-gate * advantages, response_mask, "seq-mean-token-mean", config, rollout_is_weights)
    nothing = torch.zeros_like(log_ratio)
    return loss, _metrics(nothing, log_ratio, nothing, response_mask)


@register_policy_loss("cispo")
def compute_policy_loss_cispo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """CISPO (MiniMax-M1, arXiv:2506.13585): REINFORCE weighted by a clipped ratio that carries no gradient.

        l = -sg(clip(r, 1 - low, 1 + high)) * A * log pi

    A clipped token still teaches, with a bounded weight; under PPO's clip it teaches nothing.
    """
    config = config or LossConfig()
    low, high = config.clip_range()
    log_ratio = log_ratio_of(log_prob, old_log_prob)
    ratio = torch.exp(log_ratio).detach()
    weight = ratio.clamp(1 - low, 1 + high)
    loss = aggregated(-weight * advantages * log_prob, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, _metrics(ratio != weight, log_ratio, torch.zeros_like(log_ratio), response_mask)


@register_policy_loss("geo_mean")
def compute_policy_loss_geo_mean(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """Geometric-mean policy optimisation (GMPO, arXiv:2507.20673): the geometric mean of clipped ratios of a
    row.

        l_i = -(mean_t A) * exp(mean_t of the more pessimistic of log r and clip(log r, -low, high))

    averaged over the rows of this call. `rollout_is_weights` enter as their geometric mean over the row.

    As in verl, neither `loss_agg_mode` nor the denominators of the mini-batch are used: with several micro-batches or
    ranks the gradient depends on the cut, so give each mini-batch one micro-batch
    (actor.ppo_micro_batch_size_per_gpu).
    """
    config = config or LossConfig()
    low, high = config.clip_range()
    log_ratio = log_prob - old_log_prob
    clipped = log_ratio.clamp(-low, high)
    sign = torch.sign(advantages)
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * clipped)
    losses = -_row_mean(advantages, response_mask) * torch.exp(_row_mean(pessimistic, response_mask))  # [num_rows]
    if rollout_is_weights is not None:
        losses = losses * torch.exp(_row_mean(torch.log(rollout_is_weights + 1e-10), response_mask))
    acted = log_ratio != clipped
    return losses.mean(), _metrics(acted & (advantages > 0), log_ratio, acted & (advantages < 0), response_mask)


def _row_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(dim=-1) / (mask.sum(dim=-1) + EMPTY)


@register_policy_loss("dppo_tv")
def compute_policy_loss_dppo_tv(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """Divergence PPO with the total variation of one token (arXiv:2602.04879): low and high bound pi -
    pi_old.

        l = -A * sg(min(r, c)) * log pi * inside        inside = pi - pi_old <= high where A > 0, >= -low elsewhere

    c is actor.clip_ratio_c, to be set far above PPO's 3 (the paper: 20). Unlike a ratio, a difference of
    probabilities lets rare tokens move.
    """
    config = config or LossConfig()
    low, high = config.clip_range()
    moved = log_prob.exp() - old_log_prob.exp()
    inside = torch.where(advantages > 0, moved <= high, moved >= -low)
    return _divergence_loss(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights, inside
    )


@register_policy_loss("dppo_kl")
def compute_policy_loss_dppo_kl(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """As dppo_tv with a binary KL (arXiv:2602.04879): this token against all others together.

    kl     = pi_old log(pi_old / pi) + (1 - pi_old) log((1 - pi_old) / (1 - pi))
    inside = kl <= high or pi <= pi_old where A > 0; kl <= low or pi >= pi_old elsewhere
    """
    config = config or LossConfig()
    low, high = config.clip_range()
    prob, old_prob = log_prob.exp(), old_log_prob.exp()
    others = torch.log((1.0 - old_prob + EMPTY) / (1.0 - prob + EMPTY))
    kl = old_prob * (old_log_prob - log_prob) + (1 - old_prob) * others
    up_is_fine, down_is_fine = (kl <= high) | (prob <= old_prob), (kl <= low) | (prob >= old_prob)
    inside = torch.where(advantages > 0, up_is_fine, down_is_fine)
    return _divergence_loss(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights, inside
    )


def _divergence_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: LossConfig,
    rollout_is_weights: Tensor | None,
    inside: Tensor,
) -> Loss:
    """REINFORCE with a truncated ratio on the tokens `inside` the trust region, bool [num_rows, j1]."""
    log_ratio = log_ratio_of(log_prob, old_log_prob)
    ratio = torch.exp(log_ratio).detach()
    losses = -advantages * ratio.clamp(max=config.clip_ratio_c) * log_prob * inside
    loss = aggregated(losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, _metrics(~inside, log_ratio, (ratio > config.clip_ratio_c) & inside, response_mask)
