"""Checks of predictions about the policy loss: the truth comes from kitlib.algos and from the queue.

The first two judge toy numbers that the notebook makes, the third one the batch of a real step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kitlib.algos.aggregation import agg_loss
from kitlib.algos.policy_loss import LossConfig, compute_policy_loss_vanilla
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.reading import number_of, whole_numbers_of
from kitlib.transfer_queue import KVBatchMeta, padded

CLOSE = 0.006  # a number rounded to two digits is right


def close(said: float, true: float) -> bool:
    """Is it this number, rounded to two digits?"""
    return abs(said - true) <= CLOSE * max(1.0, abs(true))


def check_moving(answer: Any, advantages: Tensor, ratio: Tensor) -> Answer:
    """Which tokens have a gradient under the clipped loss? `answer`: the set of their numbers, counted from 0."""
    if unanswered(answer):
        return open_answer()
    numbers = whole_numbers_of(answer)
    if numbers is None:
        return mistakes([f"the answer is a set of token numbers, such as {{0, 3}}, not {answer!r}"])
    said, tokens = set(numbers), range(len(ratio))
    if outside := sorted(said - set(tokens)):
        return mistakes([f"there is no token {outside[0]}: they are numbered from 0 to {len(ratio) - 1}"])
    moving = moving_tokens(advantages, ratio)
    low, high = LossConfig().clip_range()
    wrong = [_still(token, advantages, ratio) for token in sorted(said - moving)]
    for token in sorted(moving - said):
        inside = 1 - low <= float(ratio[token]) <= 1 + high
        wrong.append(f"token {token} moves: {_INSIDE if inside else _WRONG_WAY}")
    if wrong:
        return mistakes(wrong)
    return right("a clip stops only a token that has already gone far enough in the direction of its advantage")


_INSIDE = "its ratio lies inside the range, so nothing is clipped"
_WRONG_WAY = (
    "its ratio is out of range, but on the wrong side for its advantage, so the loss keeps the unclipped term, which "
    "is the larger one, and pulls the token back"
)


def _still(token: int, advantages: Tensor, ratio: Tensor) -> str:
    way = "more" if ratio[token] > 1 else "less"
    wish = "good" if advantages[token] > 0 else "bad"
    return (
        f"token {token} does not move: it was {wish} and is already much {way} likely, so the clipped term is the "
        "larger one, and it is a constant"
    )


def moving_tokens(advantages: Tensor, ratio: Tensor) -> set[int]:
    """Numbers of the tokens whose log-probability the loss would change."""
    log_prob = ratio.double().log().requires_grad_()
    mask = torch.ones(1, len(ratio), dtype=torch.bool)
    loss, _ = compute_policy_loss_vanilla(
        torch.zeros(1, len(ratio)), log_prob[None], advantages.double()[None], mask, "token-sum"
    )
    (gradient,) = torch.autograd.grad(loss, log_prob)
    return set(gradient.nonzero().flatten().tolist())


def check_aggregation(token_mean: Any, sum_of_rows: Any, mean_of_rows: Any, losses: Tensor, mask: Tensor) -> Answer:
    """The averages token-mean, seq-mean-token-sum and seq-mean-token-mean of the toy losses [num_rows, j1]."""
    answers = {"token-mean": token_mean, "seq-mean-token-sum": sum_of_rows, "seq-mean-token-mean": mean_of_rows}
    if unanswered(*answers.values()):
        return open_answer()
    wrong = []
    for mode, answer in answers.items():
        said = number_of(answer)
        if said is None:
            wrong.append(f"{mode}: the answer is a number, not {answer!r}")
        elif not close(said, true := float(agg_loss(losses, mask, mode))):
            wrong.append(f"{mode}: {_wrong_average(mode, said, true, losses, mask)}")
    if wrong:
        return mistakes(wrong)
    return right("each mode divides by another number: all tokens, or all answers")


def _wrong_average(mode: str, said: float, true: float, losses: Tensor, mask: Tensor) -> str:
    total, num_tokens, num_rows = float((losses * mask).sum()), float(mask.sum()), len(mask)
    if close(said, total / mask.numel()):
        return "you divided by all places, and the padding is none of the tokens"
    if close(said, float((losses * mask).mean(dim=1).mean())) or close(said, float(losses.mean())):
        return "the padding counts in your mean"
    if close(said, total):
        return "this is the sum, which is not divided yet"
    for other in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        if other != mode and close(said, float(agg_loss(losses, mask, other))):
            return f"this is {other}: {_MEANING[mode]}"
    return f"{said:g} is not it: {_MEANING[mode]} ({num_tokens:.0f} tokens, {num_rows} answers)"


_MEANING = {
    "token-mean": "add up all tokens of the batch, then divide by their number",
    "seq-mean-token-sum": "add up the tokens of each answer, then take the mean over the answers",
    "seq-mean-token-mean": "take the mean over the tokens of each answer, then the mean over the answers",
}


def check_first_loss(pg_loss: Any, ppo_kl: Any, trainer: Any, batch: KVBatchMeta) -> Answer:
    """What the first update of a batch prints, with token-mean: worked out from advantages and response_mask."""
    if unanswered(pg_loss, ppo_kl):
        return open_answer()
    loss, kl = number_of(pg_loss), number_of(ppo_kl)
    if loss is None or kl is None:
        return mistakes([_no_number("pg_loss", pg_loss) if loss is None else _no_number("ppo_kl", ppo_kl)])
    data = trainer.pull(batch, "advantages", "response_mask")
    advantages, mask = padded(data["advantages"]), padded(data["response_mask"])
    wrong = []
    if not close(loss, true := -float((advantages * mask).sum() / mask.sum())):
        wrong.append(f"pg_loss: {_wrong_loss(loss, true, advantages, mask, data)}")
    if not close(kl, 0.0):
        wrong.append("ppo_kl compares the policy with the one that gave old_log_probs, and nothing has changed yet")
    if wrong:
        return mistakes(wrong)
    return right("the ratio is 1 everywhere, so the loss is minus the mean advantage of the trained tokens")


def _wrong_loss(said: float, true: float, advantages: Tensor, mask: Tensor, data: Any) -> str:
    if close(said, -true):
        return "the sign: a loss falls when the policy gets better, so it is MINUS the mean advantage"
    num_tokens = float(data["advantages"].values().numel())
    if close(abs(said), abs(float((advantages * mask).sum())) / num_tokens):
        return "the tokens of the tool count in your mean; only those with a 1 in response_mask are trained"
    if close(abs(said), abs(float((advantages * mask).mean()))):
        return "the padding counts in your mean"
    if close(abs(said), abs(float((advantages * mask).sum()))):
        return "this is the sum over the trained tokens, which is not divided yet"
    if close(said, 0.0):
        return (
            "the advantages of a group add up to 0 over its ANSWERS; here the mean is over TOKENS, and a long answer "
            "has more of them"
        )
    return "start from the advantages: with a ratio of 1 the loss of a token is minus its advantage"


def _no_number(name: str, said: Any) -> str:
    shape = f"a tensor of shape {list(said.shape)}" if isinstance(said, Tensor) else repr(said)
    return f"{name} is one number, not {shape}"
