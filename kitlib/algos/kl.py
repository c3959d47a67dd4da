"""KL divergence between two policies, estimated from the log-probabilities of sampled tokens.

verl 0.9.1: trainer/ppo/core_algos.py, kl_penalty, kl_penalty_forward, AdaptiveKLController, FixedKLController,
get_kl_controller; trainer/ppo/ray_trainer.py, apply_kl_penalty.

Two uses: `kl_penalty` inside the actor's loss (actor.use_kl_loss), and `apply_kl_penalty`, which takes it off the
rewards (algorithm.use_kl_in_reward). Differs: verl lists an estimator "full" over all logits that it never
implemented; here the name is unknown.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from kitlib.algos.errors import AlgoError
from kitlib.algos.masked import masked_mean

KL_PENALTIES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """Per-token estimate of KL(policy || reference) at tokens sampled from the policy; same shape as `logprob`.

    With d = logprob - ref_logprob (J. Schulman, "Approximating KL divergence", 2020, estimators k1, k2, k3):

        kl, k1          d                      unbiased value, can be negative
        abs             |d|
        mse, k2         d^2 / 2                biased value, small variance; its gradient is the gradient of the KL
        low_var_kl, k3  exp(-d) + d - 1        unbiased value, never negative; d clamped to +-20, result to +-10

    A trailing "+" (as in "k3+") keeps that value and takes the gradient of k2: the k1 and k3 values are unbiased, but
    their gradients are not gradients of the KL.
    """
    if kl_penalty.endswith("+"):
        value = kl_estimate(logprob, ref_logprob, kl_penalty[:-1]).detach()
        k2 = kl_estimate(logprob, ref_logprob, "k2")
        return k2 - k2.detach() + value
    return kl_estimate(logprob, ref_logprob, kl_penalty)


def kl_estimate(logprob: Tensor, ref_logprob: Tensor, name: str) -> Tensor:
    """The plain estimators of `kl_penalty`, without the "+" variants."""
    log_ratio = logprob - ref_logprob
    if name in ("kl", "k1"):
        return log_ratio
    if name == "abs":
        return log_ratio.abs()
    if name in ("mse", "k2"):
        return 0.5 * log_ratio.square()
    if name in ("low_var_kl", "k3"):
        log_ratio = log_ratio.clamp(-20, 20)
        return (torch.exp(-log_ratio) + log_ratio - 1).clamp(-10, 10)
    raise AlgoError(
        f"unknown KL penalty {name!r}: actor.kl_loss_type and algorithm.kl_penalty take {', '.join(KL_PENALTIES)}, "
        "each also with a trailing +"
    )


class KLController(Protocol):
    """Holds the coefficient beta of the KL penalty and moves it after each batch."""

    value: float

    def update(self, current_kl: float, n_steps: int) -> None: ...


class FixedKLController:
    """beta never moves (algorithm.kl_ctrl.type = fixed)."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Nothing to do."""


class AdaptiveKLController:
    """beta follows the measured KL to a target (Ziegler et al., arXiv:1909.08593, section 2.2).

    beta <- beta * (1 + clip(kl / target - 1, +-0.2) * n / horizon), n the number of rows since the last update.
    """

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: float) -> None:
        if horizon <= 0:
            raise AlgoError(
                f"algorithm.kl_ctrl.horizon={horizon} must be above zero: the number of rows over which beta reacts"
            )
        self.value = init_kl_coef
        self.target_kl = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Move beta after `n_steps` rows with mean KL `current_kl`."""
        error = min(max(current_kl / self.target_kl - 1, -0.2), 0.2)
        self.value *= 1 + error * n_steps / self.horizon


def get_kl_controller(kl_ctrl: Any) -> KLController:
    """The controller that `algorithm.kl_ctrl` asks for: attributes type, kl_coef and, if adaptive, target_kl,
    horizon."""
    if kl_ctrl.type == "fixed":
        return FixedKLController(kl_ctrl.kl_coef)
    if kl_ctrl.type == "adaptive":
        return AdaptiveKLController(kl_ctrl.kl_coef, kl_ctrl.target_kl, kl_ctrl.horizon)
    raise AlgoError(f"algorithm.kl_ctrl.type={kl_ctrl.type!r} is neither 'fixed' nor 'adaptive'")


def apply_kl_penalty(
    token_level_scores: Tensor,
    response_mask: Tensor,
    old_log_probs: Tensor,
    ref_log_prob: Tensor,
    kl_ctrl: KLController,
    kl_penalty_name: str = "kl",
) -> tuple[Tensor, dict[str, float]]:
    """Take the KL to the reference off the scores and move the controller; all tensors [num_rows, j1].

    token_level_rewards = token_level_scores - beta * KL on unmasked tokens (Ziegler et al., arXiv:1909.08593, eq. 2).
    Returns it with the metrics actor/reward_kl_penalty (mean over rows of the mean over tokens) and
    actor/reward_kl_penalty_coeff (the beta that was applied).
    """
    kld = kl_penalty(old_log_probs, ref_log_prob, kl_penalty_name) * response_mask
    beta = kl_ctrl.value
    current_kl = masked_mean(kld, response_mask, dim=-1).mean().item()
    kl_ctrl.update(current_kl=current_kl, n_steps=len(token_level_scores))
    metrics = {"actor/reward_kl_penalty": current_kl, "actor/reward_kl_penalty_coeff": beta}
    return token_level_scores - beta * kld, metrics
