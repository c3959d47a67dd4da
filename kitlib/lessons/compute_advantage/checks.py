"""Checks of predicted advantages: the right numbers come from kitlib.algos, a wrong answer is named by its formula.

A mistake is recognised by computing what it leads to. Answers count as equal within 0.02, so two digits are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kitlib.algos import compute_advantage, compute_advantage_for_multi_trajectories
from kitlib.inspector.render.wording import count
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.compute_advantage.toys import toy_columns
from kitlib.lessons.reading import numbers_of

TOLERANCE = 0.02
Wrong = Mapping[str, Callable[[], Tensor]]
"""{the sentence about a mistake: the numbers that it leads to}"""


def check_grpo(answer: Any, rewards: Sequence[float]) -> Answer:
    """The advantages of GRPO for the answers to one prompt, one number an answer."""
    r = torch.tensor(rewards, dtype=torch.float32)
    centred, others = r - r.mean(), (r.sum() - r) / (len(r) - 1)
    truth = compute_advantage(toy_columns(rewards), "grpo")[0][:, 0]
    return _check(
        answer,
        truth,
        {
            "these are the rewards: subtract the mean of the group first": lambda: r,
            "the sign is turned: reward minus mean, not mean minus reward": lambda: -truth,
            "the mean is subtracted; now divide by the standard deviation": lambda: centred,
            "you divided by the standard deviation over n; GRPO's divides by n - 1 (torch.std)": lambda: (
                centred / r.std(correction=0)
            ),
            "you divided by the variance: take its square root": lambda: centred / r.var(),
            "you divided, but did not subtract the mean": lambda: r / r.std(),
            "your baseline is the mean of the other answers (RLOO); GRPO's is the mean of all": lambda: r - others,
        },
        "they sum to 0, and an answer gets a positive number exactly if it is better than the mean",
    )


def check_sessions(answer: Any, keys: Sequence[str], rewards: Sequence[float]) -> Answer:
    """The advantages of GRPO for rows of one prompt, when a session may have several rows."""
    uid = keys[0].rpartition("_")[0].rpartition("_")[0]
    columns = toy_columns(rewards, [uid] * len(keys))
    truth = compute_advantage_for_multi_trajectories(columns, keys, "grpo")[0][:, 0]
    every_row = compute_advantage(columns, "grpo")[0][:, 0]
    first = {key.rpartition("_")[0]: row for row, key in reversed(list(enumerate(keys)))}
    last = {key.rpartition("_")[0]: row for row, key in enumerate(keys)}
    finals = torch.tensor([row in last.values() for row in range(len(keys))])
    sessions = torch.tensor([float(rewards[row]) for row in last.values()])
    spread = sessions.std()

    def of_first_outputs() -> Tensor:
        made = compute_advantage(toy_columns([rewards[row] for row in first.values()]), "grpo")[0][:, 0]
        by_session = dict(zip(first, made.tolist(), strict=True))
        return torch.tensor([by_session[key.rpartition("_")[0]] for key in keys])

    return _check(
        answer,
        truth,
        {
            "these are the rewards: subtract the mean of the sessions first": lambda: columns["token_level_rewards"][
                :, 0
            ],
            "you let every row into the mean; only the last output of each session counts, once": lambda: every_row,
            "the earlier outputs of a session are not left at 0: they get the number of its last output": lambda: (
                truth * finals
            ),
            "you took the first output of each session; the last one (the highest index) counts": of_first_outputs,
            "the mean of the sessions is subtracted; now divide by their standard deviation": lambda: truth * spread,
            "you divided by the standard deviation over n; GRPO's divides by n - 1 (torch.std)": lambda: (
                truth * spread / sessions.std(correction=0)
            ),
            "the sign is turned: reward minus mean, not mean minus reward": lambda: -truth,
        },
        "rows of one session share one number",
    )


def check_gae(
    answer: Any, rewards: Sequence[float], values: Sequence[float], gamma: float = 1.0, lam: float = 1.0
) -> Answer:
    """The advantages of GAE for the tokens of one answer, before whitening."""
    r, v = (torch.tensor(numbers, dtype=torch.float32) for numbers in (rewards, values))
    after = torch.cat([v[1:], torch.zeros(1)])  # V_{t+1}, 0 beyond the end
    truth = _sum_back(r + gamma * after - v, gamma * lam)
    return _check(
        answer,
        truth,
        {
            "these are the returns A + V: subtract the values": lambda: truth + v,
            "these are the steps delta_t; A_t adds gamma * lam * A_{t+1}": lambda: r + gamma * after - v,
            "this is the reward to go; the critic's V_t is missing": lambda: _sum_back(r, gamma),
            "this is r_t - V_t: the value of the next token is missing from delta_t": lambda: r - v,
            "you summed from the front: A_t looks at the tokens after t, so begin at the last one": lambda: _sum_back(
                (r + gamma * after - v).flip(0), gamma * lam
            ).flip(0),
            "this is for gamma = lam = 1: a step counts gamma * lam times as much for each token before it": lambda: (
                _sum_back(r + after - v, 1.0)
            ),
            "in the order of the tokens, please: the first number belongs to the first token": lambda: truth.flip(0),
            "this is whitened: subtract no mean and divide by nothing here": lambda: (
                (truth - truth.mean()) / truth.std()
            ),
            "the sign is turned": lambda: -truth,
        },
        "begin at the last token, where A = r - V, and walk to the front",
    )


def _sum_back(steps: Tensor, factor: float) -> Tensor:
    """sum_{s >= t} factor^(s - t) steps_s for every t."""
    made, total = [], torch.zeros(())
    for step in reversed(steps.unbind()):
        total = step + factor * total
        made.append(total)
    return torch.stack(made[::-1])


def _check(answer: Any, truth: Tensor, wrong: Wrong, hint: str) -> Answer:
    if unanswered(answer):
        return open_answer()
    numbers = numbers_of(answer)
    if numbers is None:
        return mistakes([f"the answer is a list of {len(truth)} numbers, not {answer!r}"])
    if len(numbers) != len(truth):
        return mistakes([f"{count(len(numbers), 'number')} for {len(truth)}: give one for each"])
    said = torch.tensor(numbers)
    if _same(said, truth):
        return right(", ".join(f"{value + 0.0:+.2f}" for value in truth.tolist()), hint)
    named = [sentence for sentence, lead in wrong.items() if _same(said, lead()) and not _same(truth, lead())]
    off = [str(number) for number, (a, b) in enumerate(zip(said, truth, strict=True)) if not abs(a - b) <= TOLERANCE]
    return mistakes(named[:1] or [f"not right at position {', '.join(off)} (counted from 0)", f"a hint: {hint}"])


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(((a - b).abs() <= TOLERANCE).all())
