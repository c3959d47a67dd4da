"""Checks of predictions about age and weights; the truth comes from the sampler, the queue and the algorithm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from kitlib.algos.rollout_correction import compute_rollout_correction_and_rejection_mask
from kitlib.inspector.render.wording import count, joined
from kitlib.keys import is_trajectory_key, uid_of
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.reading import names_of, number_of, numbers_of, whole_number_of
from kitlib.lessons.stay_on_policy.interruption import Interruption
from kitlib.replay_buffer import PartitionView, ReplayBuffer
from kitlib.replay_buffer.lookout import fresh_view
from kitlib.replay_buffer.prompts import staleness
from kitlib.transfer_queue import QueueProtocol

TOLERANCE = 1e-3


def check_dropped(answer: Any, buffer: ReplayBuffer, global_steps: int) -> Answer:
    """Which prompts does `sample` of this buffer throw out at its first look, because they are too old?"""
    if unanswered(answer):
        return open_answer()
    said = names_of(answer)
    if said is None:
        return mistakes([f'the answer is a set of uids, such as {{"u1", "u2"}}, not {answer!r}'])
    view = fresh_view(buffer.tq, "train")
    dropped = set(buffer.evictions(global_steps, view).stale)
    limit = buffer.max_off_policy_threshold
    wrong = [_why_not_dropped(uid, view, global_steps, limit) for uid in sorted(said - dropped)]
    if missing := dropped - said:
        wrong.append(
            f"{count(len(missing), 'prompt')} still missing from your answer: a prompt spans step - submitted + 1 "
            "versions, both ends count"
        )
    return mistakes(wrong) if wrong else right(f"{joined(sorted(dropped))}: finished, and beyond {limit} versions")


def _why_not_dropped(uid: str, view: PartitionView, global_steps: int, limit: int | None) -> str:
    if uid in view.in_flight:
        return f"{uid} is in flight: only a finished prompt is dropped, since somebody still writes to this one"
    if is_trajectory_key(uid):
        return f"{uid} is the key of a row: name the prompt by its uid, {uid_of(uid)}"
    if uid not in view.terminal:
        return f"{uid} has no marker here"
    spans = staleness(global_steps, view.terminal[uid])
    edge = ", which is the threshold itself: only what is beyond it is dropped" if spans == limit else ""
    return f"{uid} spans {count(spans, 'version')}{edge}"


def check_kept(answer: Any, interruption: Interruption, tq: QueueProtocol, key: str) -> Answer:
    """How many tokens of this row had been made when the server was stopped?"""
    if unanswered(answer):
        return open_answer()
    said = whole_number_of(answer)
    if said is None:
        return mistakes([f"the answer is a whole number, not {answer!r}"])
    truth, data = interruption.num_kept(tq, key), tq.kv_batch_get([key], "train", ["response_mask"])
    mask = data["response_mask"].unbind()[0]  # [R]
    reasons = {
        0: "the tokens of an aborted request are kept, not thrown away",
        len(mask): "that is the whole response, the tool's tokens included",
        int(mask.sum()): "that is every token of the model",
        int(mask.sum()) - truth: "that many were made after the weight sync",
    }
    if said == truth:
        return right(f"{count(truth, 'token')} by the old weights, {int(mask.sum()) - truth} by the new ones")
    hint = "count the lines at the beginning whose old/rollout is not 1.000"
    return mistakes([f"not {said}: {reasons.get(said, hint)}"])


def check_weights(
    token: Any, sequence: Any, old_log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, threshold: float
) -> Answer:
    """Truncated importance weights of one row [R]: of each token (a list), and of the row (a number)."""
    if unanswered(token, sequence):
        return open_answer()
    truth = {level: _weights(old_log_probs, rollout_log_probs, level, threshold) for level in ("token", "sequence")}
    tokens, row = numbers_of(token), number_of(sequence)
    if tokens is None or len(tokens) != len(truth["token"]):
        return mistakes([f"token is a list of {len(truth['token'])} numbers"])
    if row is None:
        return mistakes(["sequence is one number"])
    wrong = _wrong_tokens(tokens, truth["token"], old_log_probs - rollout_log_probs)
    wrong += _wrong_sequence(row, truth, old_log_probs - rollout_log_probs)
    if wrong:
        return mistakes(wrong)
    return right(f"tokens {', '.join(f'{round(weight, 3):g}' for weight in truth['token'])}; row {row:g}")


def _weights(old: torch.Tensor, rollout: torch.Tensor, level: str, threshold: float) -> list[float]:
    corrected = compute_rollout_correction_and_rejection_mask(
        old[None], rollout[None], torch.ones_like(old)[None], rollout_is=level, rollout_is_threshold=threshold
    )
    assert corrected.weights is not None
    return corrected.weights[0].tolist()


def _wrong_tokens(said: list[float], truth: list[float], log_ratio: torch.Tensor) -> list[str]:
    if _close(said, truth):
        return []
    if _close(said, log_ratio.exp().tolist()):
        return ["token: these are the ratios before truncation"]
    if _close(said, (-log_ratio).exp().tolist()):
        return ["token: upside down: the probability of the trainer stands above, that of the server below"]
    if _close(said, [0.0 if cut < ratio else cut for cut, ratio in zip(truth, log_ratio.exp().tolist(), strict=True)]):
        return ["token: a weight above the threshold becomes the threshold; only a pair of thresholds gives 0"]
    at = next(i for i, (a, b) in enumerate(zip(said, truth, strict=True)) if not _close([a], [b]))
    return [f"token: number {at + 1} is not {said[at]:g}: divide trainer by server, then cut at the threshold"]


def _wrong_sequence(said: float, truth: dict[str, list[float]], log_ratio: torch.Tensor) -> list[str]:
    if _close([said], truth["sequence"][:1]):
        return []
    ratios = log_ratio.exp()
    thoughts = {
        "sequence: that is the mean of the ratios; the probability of a row is a product": ratios.mean(),
        "sequence: that is the sum of the ratios; probabilities are multiplied": ratios.sum(),
        "sequence: that is the product before truncation": ratios.prod(),
        "sequence: that is the product of the truncated weights; multiply first, then cut": math.prod(truth["token"]),
        "sequence: upside down: trainer above, server below": 1 / ratios.prod(),
    }
    named = [text for text, value in thoughts.items() if _close([said], [float(value)])]
    return named[:1] or [f"sequence: not {said:g}: multiply the ratios of all tokens, then cut at the threshold"]


def _close(said: Sequence[float], truth: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for a, b in zip(said, truth, strict=True))
