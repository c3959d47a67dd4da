"""The actor's loss on one micro-batch: policy loss, entropy bonus, KL to the reference.

verl 0.9.1: workers/utils/losses.py, ppo_loss; utils/metric/utils.py, Metric (how its metrics combine). Left out:
distillation.

    loss = pg_loss - entropy_coeff * entropy_loss + kl_loss_coef * kl_loss

Each term is averaged with the denominators of the whole mini-batch, so the terms of all micro-batches add up to the
loss of the mini-batch (see kitlib.algos.aggregation).

Differs: verl averages the clip fractions and ppo_kl over micro-batches and ranks as they come; here each micro-batch
weighs as many tokens as it has, so that these metrics do not depend on the cut either. Without a cut the numbers are
the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kitlib.algos.aggregation import agg_loss
from kitlib.algos.kl import kl_penalty
from kitlib.algos.policy_loss import LossConfig, get_policy_loss_fn
from kitlib.workers.errors import WorkerError


@dataclass(frozen=True)
class LossOutput:
    """The loss of one micro-batch and its metrics."""

    loss: Tensor
    """Scalar with gradient."""
    shares: dict[str, float]
    """Metrics that are a share of the mini-batch's value: to be added up over micro-batches and averaged over ranks."""
    means: dict[str, float]
    """Metrics that are means over tokens: to be averaged with the number of tokens as weight."""
    policy_loss: Tensor | None = None
    """The actor's: the part of the loss without entropy bonus and KL, a scalar with gradient."""


def ppo_loss(
    actor: Any,
    log_prob: Tensor,
    entropy: Tensor | None,
    response: Mapping[str, Tensor],
    global_batch_info: Mapping[str, Any],
) -> LossOutput:
    """Loss of the actor on rows of responses; all tensors [num_rows, max R].

    Args:
        actor: the config section actor_rollout_ref.actor.
        log_prob, entropy: of the current policy; entropy None leaves the bonus out.
        response: response_mask, old_log_probs, advantages; rollout_is_weights if tokens are weighted; ref_log_prob if
            actor.use_kl_loss.
        global_batch_info: dp_size, batch_num_tokens, global_batch_size, loss_scale_factor of the mini-batch.
    """
    mask = response["response_mask"].bool()
    policy_loss_fn = get_policy_loss_fn(actor.policy_loss.loss_mode)
    loss, means = policy_loss_fn(
        old_log_prob=response["old_log_probs"],
        log_prob=log_prob,
        advantages=response["advantages"],
        response_mask=mask,
        loss_agg_mode=actor.loss_agg_mode,
        config=LossConfig.from_actor(actor, **global_batch_info),
        rollout_is_weights=response.get("rollout_is_weights"),
    )
    policy_loss = loss
    shares = {"actor/pg_loss": loss.item()}

    if entropy is not None:
        entropy_loss = agg_loss(entropy, mask, actor.loss_agg_mode, **global_batch_info)
        loss = loss - actor.entropy_coeff * entropy_loss
        shares["actor/entropy_loss"] = entropy_loss.item()

    if actor.use_kl_loss:
        if "ref_log_prob" not in response:
            raise WorkerError("actor.use_kl_loss=true needs the field ref_log_prob: run compute_ref_log_prob before")
        kld = kl_penalty(log_prob, response["ref_log_prob"], actor.kl_loss_type)
        kl_loss = agg_loss(kld, mask, actor.loss_agg_mode, **global_batch_info)
        loss = loss + actor.kl_loss_coef * kl_loss
        shares["actor/kl_loss"] = kl_loss.item()

    shares["actor/loss"] = loss.item()
    return LossOutput(loss, shares, means, policy_loss)
