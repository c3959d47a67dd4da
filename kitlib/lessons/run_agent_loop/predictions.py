"""Two predictions and their checks: what top-p leaves over, which tokens of a session are trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from kitlib.inspector.render.wording import count
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.reading import numbers_of
from kitlib.rollout.sampling import SamplingControls, SamplingParams, sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NUM_DRAWS = 10_000
TOLERANCE = 0.006  # two digits are enough


def shares(probabilities: Sequence[float], **params: Any) -> list[float]:
    """How often the server's sampler draws each token under `params`: the draws are spread evenly, not at random."""
    logits = torch.tensor([list(probabilities)]).log().repeat(NUM_DRAWS, 1)  # [num_draws, vocab_size]
    controls = SamplingControls.of([SamplingParams.parse(params)] * NUM_DRAWS, len(probabilities), torch.device("cpu"))
    uniform = (torch.arange(NUM_DRAWS, dtype=torch.float64) + 0.5) / NUM_DRAWS
    token_ids, _ = sample(logits, controls, uniform, None)
    return [round(share, 3) for share in (token_ids.bincount(minlength=len(probabilities)) / NUM_DRAWS).tolist()]


@torch.no_grad()
def log_prob_of(model: PreTrainedModel, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> float:
    """The log-probability that the model answers the prompt with exactly these tokens."""
    logits = model(torch.tensor([[*prompt_ids, *response_ids]])).logits[0]  # [S, vocab_size]
    log_probs = logits[len(prompt_ids) - 1 : -1].log_softmax(dim=-1)  # [R, vocab_size], each scores the next token
    return log_probs[range(len(response_ids)), list(response_ids)].sum().item()


def check_shares(answer: Any, probabilities: Sequence[float], top_p: float) -> Answer:
    """With which share is each token drawn under `top_p`? `answer` is a list of numbers."""
    if unanswered(answer):
        return open_answer()
    said = numbers_of(answer)
    if said is None or len(said) != len(probabilities):
        return mistakes([f"the answer is a list of {len(probabilities)} numbers, one a token"])
    truth = shares(probabilities, top_p=top_p)
    if _close(said, truth):
        return right(f"tokens are taken from the largest down until they hold at least {top_p:g}, then scaled to 1")
    return mistakes([_wrong_shares(said, truth, probabilities, top_p)])


def _wrong_shares(said: list[float], truth: list[float], probabilities: Sequence[float], top_p: float) -> str:
    kept = [p if share else 0.0 for p, share in zip(probabilities, truth, strict=True)]
    if _close(said, probabilities):
        return f"that is the whole distribution: top_p={top_p:g} leaves out what comes after the first {top_p:g} of it"
    if _close(said, kept):
        return "these are the right tokens, but something must always be drawn: scale what is left to a sum of 1"
    if not math.isclose(sum(said), 1, abs_tol=0.05):
        return f"the shares are scaled to a sum of 1, and yours add up to {sum(said):g}"
    num_said, num_kept = sum(map(bool, said)), sum(map(bool, truth))
    if num_said < num_kept:
        return f"one token too few: the token that crosses {top_p:g} stays, otherwise less than {top_p:g} would be left"
    if num_said > num_kept:
        return f"one token too many: what stands before it holds {top_p:g} already"
    if [bool(share) for share in said] != [bool(share) for share in truth]:
        return "the right number of tokens, and not the right ones: the most likely stay"
    return "the right tokens, with wrong shares: divide what is left by its sum"


def check_mask(answer: Any, *turns: tuple[str, Sequence[int]]) -> Answer:
    """Is this the response_mask of a response made of these turns, each ("model" or "tool", its token ids)?"""
    if unanswered(answer):
        return open_answer()
    said = numbers_of(answer)
    if said is None or not set(said) <= {0.0, 1.0}:
        return mistakes(["the answer is one list of 0 and 1, for example [1] * 3 + [0] * 2"])
    truth = [float(who == "model") for who, ids in turns for _ in ids]
    if said == truth:
        return right(f"{count(int(sum(truth)), 'token')} of {len(truth)} will be trained: those that the model wrote")
    return mistakes([_wrong_mask(said, truth, turns)])


def _wrong_mask(said: list[float], truth: list[float], turns: Sequence[tuple[str, Sequence[int]]]) -> str:
    num_tokens, num_written = len(truth), int(sum(truth))
    if len(said) == num_written and num_written < num_tokens:
        return "the tokens of the tool are part of the response, too: the mask has a number for each of them"
    if len(said) != num_tokens:
        return f"{len(said)} numbers for {num_tokens} tokens: one for each token of the response, none for the prompt"
    if not any(said):
        return "with only zeros, nothing would be trained: 1 says that the model wrote the token"
    if all(said):
        return "with only ones, the model would be trained to write what the tool has written"
    if said == [1 - number for number in truth]:
        return "the other way round: 1 says that the model wrote the token"
    first = len(turns[0][1])
    if not any(said[:first]):
        return "the call is meant for the tool, but the model wrote it: its tokens are trained"
    position = next(i for i, (a, b) in enumerate(zip(said, truth, strict=True)) if a != b)
    writer = "model" if truth[position] else "tool"
    return f"token {position} of the response (the first is token 0) was written by the {writer}"


def _close(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(abs(x - y) <= TOLERANCE for x, y in zip(a, b, strict=True))
