"""Policy losses: the registry, and PPO's clipped loss with the dual clip.

verl 0.9.1: trainer/ppo/core_algos.py, register_policy_loss, get_policy_loss_fn, compute_policy_loss_vanilla;
workers/config/actor.py, ActorConfig (the part that losses read: `LossConfig`).

A policy loss has the signature of `compute_policy_loss_vanilla`: padded tensors [num_rows, j1] in, a scalar and its
metrics out. Add your own with @register_policy_loss("name") and set actor.policy_loss.loss_mode=name; it should
average with `agg_loss(..., **config.global_batch_info)`, so that its gradient does not depend on how the batch is
cut.

Differs: in verl the worker writes the denominators of each mini-batch into the one ActorConfig; here every mini-batch
has its own `LossConfig`, which never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from kitlib.algos.aggregation import agg_loss
from kitlib.algos.errors import AlgoError
from kitlib.algos.masked import masked_mean

PolicyLossFn = Callable[..., tuple[Tensor, dict[str, float]]]

POLICY_LOSS_REGISTRY: dict[str, PolicyLossFn] = {}


@dataclass(frozen=True)
class LossConfig:
    """What policy losses read of `actor_rollout_ref.actor`, under verl's names."""

    clip_ratio: float = 0.2
    """Half-width of the trust region, used on a side that has no value of its own."""
    clip_ratio_low: float | None = None
    clip_ratio_high: float | None = None
    clip_ratio_c: float = 3.0
    """Dual clip: the largest ratio that counts against a token with a negative advantage."""
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    policy_loss: Mapping[str, Any] = field(default_factory=dict)
    """The section actor.policy_loss: loss_mode and the numbers of single losses."""
    global_batch_info: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for agg_loss: dp_size, batch_num_tokens, global_batch_size, loss_scale_factor."""

    @classmethod
    def from_actor(cls, actor: Any, **global_batch_info: Any) -> LossConfig:
        """Copy the loss settings from an `actor` config section; keys that it lacks keep their default."""
        names = {f.name for f in fields(cls)} - {"global_batch_info"}
        given = {name: getattr(actor, name) for name in names if getattr(actor, name, None) is not None}
        return cls(**given, global_batch_info=global_batch_info)

    def clip_range(self) -> tuple[float, float]:
        """(low, high): the ratio is kept within [1 - low, 1 + high]."""
        low = self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low
        high = self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high
        return low, high

    def setting(self, name: str, default: Any) -> Any:
        """A value of the section actor.policy_loss; the default if it is absent or null."""
        return section_value(self.policy_loss, name, default)


def section_value(section: Any, name: str, default: Any) -> Any:
    """A value of a config section, a mapping or an object with attributes; the default if it is absent or null."""
    value = section.get(name) if isinstance(section, Mapping) else getattr(section, name, None)
    return default if value is None else value


def aggregated(
    losses: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: LossConfig,
    rollout_is_weights: Tensor | None,
) -> Tensor:
    """`agg_loss` of one loss a token, each weighted by its importance weight if there is one."""
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    return agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)


def register_policy_loss(name: str) -> Callable[[PolicyLossFn], PolicyLossFn]:
    """Decorator: make a loss known as actor.policy_loss.loss_mode=`name`. A taken name is an AlgoError."""

    def register(fn: PolicyLossFn) -> PolicyLossFn:
        known = POLICY_LOSS_REGISTRY.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (fn.__module__, fn.__qualname__):
            raise AlgoError(
                f"policy loss {name!r} is already {known.__module__}.{known.__qualname__}: choose another name"
            )
        POLICY_LOSS_REGISTRY[name] = fn
        return fn

    return register


def get_policy_loss_fn(name: str) -> PolicyLossFn:
    """The loss registered under `name`; AlgoError lists the known ones."""
    if name not in POLICY_LOSS_REGISTRY:
        known = ", ".join(sorted(POLICY_LOSS_REGISTRY))
        raise AlgoError(f"actor.policy_loss.loss_mode={name!r} is unknown; known are {known}")
    return POLICY_LOSS_REGISTRY[name]


def log_ratio_of(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """log pi/pi_old, clamped to +-20: exp of more than that is no number to average with."""
    return (log_prob - old_log_prob).clamp(-20.0, 20.0)


@register_policy_loss("vanilla")
def compute_policy_loss_vanilla(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: LossConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """PPO's clipped surrogate (arXiv:1707.06347, eq. 7) with the dual clip (arXiv:1912.09729).

        r = pi / pi_old
        l = max(-A r, -A clip(r, 1 - low, 1 + high))
        l = min(l, -A c)      where A < 0: a token that became c times likelier and was bad costs no more

    then `agg_loss` over unmasked tokens, each weighted by `rollout_is_weights` if given. All tensors [num_rows, j1].

    Metrics: actor/pg_clipfrac (share of tokens where the first clip acted), actor/pg_clipfrac_lower (where the dual
    clip acted), actor/ppo_kl (mean of log pi_old - log pi: the k1 estimate of KL(pi_old || pi)).
    """
    config = config or LossConfig()
    if config.clip_ratio_c <= 1.0:
        raise AlgoError(f"actor.clip_ratio_c={config.clip_ratio_c} must be above 1: it bounds the ratio from above")
    low, high = config.clip_range()

    log_ratio = log_ratio_of(log_prob, old_log_prob)
    ratio = torch.exp(log_ratio)
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    pessimistic = torch.maximum(unclipped, clipped)
    ceiling = -advantages * config.clip_ratio_c
    losses = torch.where(advantages < 0, torch.minimum(pessimistic, ceiling), pessimistic)
    loss = aggregated(losses, response_mask, loss_agg_mode, config, rollout_is_weights)

    with torch.no_grad():
        metrics = {
            "actor/pg_clipfrac": masked_mean((clipped > unclipped).float(), response_mask),
            "actor/ppo_kl": masked_mean(-log_ratio, response_mask),
            "actor/pg_clipfrac_lower": masked_mean(((pessimistic > ceiling) & (advantages < 0)).float(), response_mask),
        }
    return loss, {name: value.item() for name, value in metrics.items()}
