"""Losses on log pi itself, without a ratio to clip.

verl 0.9.1: trainer/ppo/core_algos.py, compute_policy_loss_gpg, compute_policy_loss_dro, compute_policy_loss_reinforce,
compute_policy_loss_bypass_mode. Signature and shapes as in policy_loss.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kitlib.algos.errors import AlgoError
from kitlib.algos.masked import masked_mean
from kitlib.algos.policy_loss import (
    LossConfig,
    aggregated,
    compute_policy_loss_vanilla,
    register_policy_loss,
    section_value,
)
from kitlib.algos.rollout_correction import correct_rollout

Loss = tuple[Tensor, dict[str, float]]


@register_policy_loss("gpg")
def compute_policy_loss_gpg(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """Group policy gradient (GPG, arXiv:2504.02546): l = -A log pi. `old_log_prob` is not used; no metrics."""
    loss = aggregated(-log_prob * advantages, response_mask, loss_agg_mode, config or LossConfig(), rollout_is_weights)
    return loss, {}


@register_policy_loss("dro")
def compute_policy_loss_dro(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """Direct reward optimisation (arXiv:2405.19107): a quadratic penalty on the log ratio instead of a clip.

    l = -A log pi + beta / 2 * (log r)^2        beta = policy_loss.dro_beta > 0
    """
    config = config or LossConfig()
    beta = config.setting("dro_beta", None)
    if beta is None or beta <= 0:
        raise AlgoError(
            f"actor.policy_loss.dro_beta={beta} must be above 0 with loss_mode=dro: it is what bounds the step"
        )
    log_ratio = log_prob - old_log_prob
    losses = -log_prob * advantages + 0.5 * beta * log_ratio.square()
    loss = aggregated(losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, {"actor/ppo_kl": masked_mean(-log_ratio, response_mask).item()}


def compute_policy_loss_reinforce(
    rollout_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """REINFORCE (Williams, 1992): l = -w A log pi, w the importance weight pi / pi_rollout or 1; no gradient through
    w."""
    losses = -advantages * log_prob
    loss = aggregated(losses, response_mask, loss_agg_mode, config or LossConfig(), rollout_is_weights)
    return loss, {"actor/ppo_kl": masked_mean(rollout_log_prob - log_prob, response_mask).item()}


@register_policy_loss("bypass_mode")
def compute_policy_loss_bypass_mode(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """The loss when old_log_probs are the rollout's own (algorithm.rollout_correction.bypass_mode).

    Rejection sampling and importance weights are computed here, from the policy as it is in this update, by the
    settings policy_loss.rollout_correction. Then, by its `loss_type`:

        ppo_clip     the vanilla loss on the tokens that were kept; its ratio is pi / pi_rollout already
        reinforce    compute_policy_loss_reinforce on them, with the weight

    A given `rollout_is_weights` is not used. Metrics: those of the loss and rollout_corr/*.
    """
    config = config or LossConfig()
    settings = config.setting("rollout_correction", None)
    if settings is None:
        raise AlgoError("actor.policy_loss.loss_mode=bypass_mode needs actor.policy_loss.rollout_correction")
    with torch.no_grad():
        correction = correct_rollout(log_prob, old_log_prob, response_mask, settings)
    arguments = (old_log_prob, log_prob, advantages, correction.response_mask, loss_agg_mode, config)
    loss_type = section_value(settings, "loss_type", "ppo_clip")
    if loss_type == "reinforce":
        loss, metrics = compute_policy_loss_reinforce(*arguments, rollout_is_weights=correction.weights)
    elif loss_type == "ppo_clip":
        loss, metrics = compute_policy_loss_vanilla(*arguments)
    else:
        raise AlgoError(f"rollout_correction.loss_type={loss_type!r} is neither 'ppo_clip' nor 'reinforce'")
    return loss, metrics | correction.metrics
