"""A check of a policy loss that a reader has registered: minus the advantage times the ratio, without a clip.

It is called as the actor calls it: padded rows, a mask, the denominators of the whole mini-batch; first with all rows
at once, then with each row as a micro-batch of its own, with another average, and as on two GPUs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kitlib.algos.aggregation import agg_loss
from kitlib.algos.policy_loss import POLICY_LOSS_REGISTRY, LossConfig, compute_policy_loss_vanilla
from kitlib.lessons.answers import Answer, mistakes, open_answer, right

ADVANTAGES = torch.tensor([[1.5, 1.5, 1.5, 0.0], [-0.5, -0.5, 0.0, 0.0]])
OLD = torch.tensor([[-1.0, -2.0, -0.5, -3.0], [-1.5, -0.7, -2.0, -2.0]])
NEW = OLD + torch.tensor([[0.6, -0.1, 0.05, 0.8], [-0.5, 0.3, 0.7, 0.0]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()  # the last places are tool tokens and padding
INFO = {"dp_size": 1, "batch_num_tokens": int(MASK.sum()), "global_batch_size": len(MASK)}
BY_ANSWER, TWO_GPUS = {"loss_agg_mode": "seq-mean-token-mean"}, {"dp_size": 2}  # what else it is called with
NOT_A_PAIR = object()


def check_policy_loss(name: str) -> Answer:
    """Is the loss registered under `name` right, and the same however the batch is cut?"""
    if name not in POLICY_LOSS_REGISTRY:
        return mistakes(
            [f"no loss is registered under {name!r}: @register_policy_loss({name!r}) above the def does it"]
        )
    try:
        whole, log_prob = _call(name, slice(None))
        if whole is ...:
            return open_answer()
        if whole is NOT_A_PAIR:
            return mistakes(["return two things: the loss, and a dictionary of metrics, which may be empty"])
        pieces = [_call(name, slice(row, row + 1))[0] for row in range(len(MASK))]
        by_answer, on_two = (_call(name, slice(None), **other)[0] for other in (BY_ANSWER, TWO_GPUS))
    except Exception as error:  # noqa: BLE001  a reader's code: whatever it raises is shown
        return mistakes([f"your loss raised {type(error).__name__}: {error}"])
    if not isinstance(whole, Tensor) or whole.numel() != 1:
        what = f"a tensor of shape {list(whole.shape)}" if isinstance(whole, Tensor) else repr(whole)
        return mistakes([f"the first thing returned must be one number, a tensor without dimensions, not {what}"])
    if wrong := _wrong_value(whole.item()):
        return mistakes([wrong])
    if not whole.requires_grad or not torch.autograd.grad(whole, log_prob, allow_unused=True)[0].any():
        return mistakes(["the value is right, but no gradient reaches log_prob: do not detach it"])
    if abs(sum(piece.item() for piece in pieces) - whole.item()) > 1e-5:
        return mistakes([_NOT_GLOBAL])
    if abs(by_answer.item() - _loss(**BY_ANSWER)) > 1e-5:
        return mistakes([_NOT_THE_MODE])
    if abs(on_two.item() - 2 * whole.item()) > 1e-5:
        return mistakes([_NOT_ON_TWO])
    return right(f"actor_rollout_ref.actor.policy_loss.loss_mode={name} would train with it, however the batch is cut")


_NOT_GLOBAL = (
    "right for the whole batch, but two micro-batches do not add up to it: pass **config.global_batch_info to "
    "agg_loss, it holds the denominators of the whole mini-batch"
)
_NOT_THE_MODE = (
    "right for token-mean, but the same for every other average: pass loss_agg_mode on to agg_loss, so that the "
    "setting chooses"
)
_NOT_ON_TWO = (
    "right on one GPU, but too small on two: FSDP takes the mean over the GPUs, so multiply by dp_size, which "
    "agg_loss does with **config.global_batch_info"
)


def _call(name: str, rows: slice, loss_agg_mode: str = "token-mean", dp_size: int = 1) -> tuple[Any, Tensor]:
    """What the loss returns for these rows, and the log-probs that it got."""
    log_prob = NEW[rows].clone().requires_grad_()
    returned = POLICY_LOSS_REGISTRY[name](
        old_log_prob=OLD[rows],
        log_prob=log_prob,
        advantages=ADVANTAGES[rows] + 9.0 * ~MASK[rows],  # a loss that forgets the mask shows
        response_mask=MASK[rows],
        loss_agg_mode=loss_agg_mode,
        config=LossConfig(global_batch_info=INFO | {"dp_size": dp_size}),
        rollout_is_weights=None,
    )
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    return returned[0] if is_pair else NOT_A_PAIR, log_prob


def _loss(loss_agg_mode: str = "token-mean") -> float:
    """The right value."""
    return float(agg_loss(-ADVANTAGES * (NEW - OLD).exp(), MASK, loss_agg_mode, **INFO))


def _wrong_value(said: float) -> str | None:
    """The likely mistake behind a wrong value; None for the right one."""
    advantages, log_ratio = ADVANTAGES + 9.0 * ~MASK, NEW - OLD
    ratio = log_ratio.exp()
    true = _loss()
    if abs(said - true) < 1e-5:
        return None
    vanilla, _ = compute_policy_loss_vanilla(
        OLD, NEW, advantages, MASK, "token-mean", LossConfig(global_batch_info=INFO)
    )
    known = {
        -true: "the sign: minimizing this would make good tokens less likely; the loss is MINUS advantage times ratio",
        float((-advantages * ratio).mean()): "masked places count, too: let agg_loss average, with response_mask",
        float((-advantages * ratio).sum()): "masked places count, too: let agg_loss average, with response_mask",
        float(vanilla): "this is the clipped loss, and the exercise asks for one without a clip",
        _mean(
            -advantages * ratio.clamp(0.8, 1.2)
        ): "the ratio is clipped, and the exercise asks for a loss without a clip",
        _mean(-advantages * log_ratio): "log_prob - old_log_prob is the LOG of the ratio: take exp",
        _mean(-advantages / ratio): "the ratio is upside down: new over old is exp(log_prob - old_log_prob)",
        _mean(-advantages * NEW): "old_log_prob is missing: the ratio is exp(log_prob - old_log_prob)",
        _mean(-ratio): "the advantages are missing",
    }
    for value, mistake in known.items():
        if abs(said - value) < 1e-5:
            return mistake
    return f"on the toy batch it gives {said:.4f}, and minus advantage times ratio gives {true:.4f}"


def _mean(losses: Tensor) -> float:
    return float(agg_loss(losses, MASK, "token-mean", **INFO))
