"""How the next token is drawn, for many rows at once.

verl 0.9.1 hands these parameters to vLLM as a dict (trainer/ppo/v1/agent_loop_tq.py,
AgentLoopWorkerTQ.generate_sequences; defaults from workers/rollout/vllm_rollout/vllm_async_server.py,
vLLMHttpServer.generate). The order of the operations is vLLM's: repetition penalty, temperature, top-k, top-p,
softmax. Left out: min_p, presence and frequency penalties, logit bias, n > 1, prompt log-probs.

A token is drawn by inverting the cumulative distribution at one uniform number, and that number depends on the
request and the position alone. So what a request gets depends neither on its neighbours in the batch nor on when it
joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kitlib.rollout.protocol import RolloutError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request, with verl's names.

    temperature 0 is greedy. top_k -1 or 0 and top_p 1 switch the filters off. max_tokens None leaves the budget to
    the server. logprobs asks for the log-probability of each sampled token. ignore_eos generates past the
    end-of-sequence token; stop_token_ids end the request in addition to it. seed makes the draws depend on it and on
    the position alone.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    logprobs: bool = False
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Read verl's dict; max_new_tokens is another name of max_tokens. RolloutError names an unknown or bad
        value."""
        values = dict(values)
        if "max_new_tokens" in values and "max_tokens" not in values:
            values["max_tokens"] = values.pop("max_new_tokens")
        unknown = values.keys() - _NAMES
        if unknown:
            raise RolloutError(f"unknown sampling parameter {sorted(unknown)}: known are {', '.join(sorted(_NAMES))}")
        values["stop_token_ids"] = tuple(values.get("stop_token_ids") or ())
        params = cls(**values)
        params._check()
        return params

    def _check(self) -> None:
        checks = {
            "temperature": (self.temperature >= 0, "at least 0 (0 is greedy)"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "top_k": (self.top_k >= -1, "-1 (off) or a positive count"),
            "repetition_penalty": (self.repetition_penalty > 0, "above 0"),
        }
        for name, (good, expected) in checks.items():
            if not good:
                raise RolloutError(f"sampling parameter {name}={getattr(self, name)!r}: expected {expected}")


_NAMES = frozenset(f.name for f in fields(SamplingParams))


@dataclass(frozen=True)
class SamplingControls:
    """The parameters of a block of rows as tensors. None means that no row of the block uses that control."""

    temperature: float | Tensor  # one number when all rows agree, else [num_rows, 1]; greedy rows count as 1
    greedy: bool | Tensor  # True or False when all rows agree, else bool [num_rows]
    top_k: Tensor | None  # int64 [num_rows, 1]
    top_p: Tensor | None  # float32 [num_rows, 1]
    repetition_penalty: Tensor | None  # float32 [num_rows, 1]

    @classmethod
    def of(cls, params: list[SamplingParams], vocab_size: int, device: torch.device) -> SamplingControls:
        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)

        temperatures = [float(p.temperature) or 1.0 for p in params]
        greedy = [p.temperature == 0 for p in params]
        top_ks = [p.top_k if p.top_k > 0 else vocab_size for p in params]
        same = len(set(temperatures)) == 1
        return cls(
            temperature=temperatures[0] if same else column(temperatures, torch.float32),
            greedy=greedy[0] if len(set(greedy)) == 1 else torch.tensor(greedy, device=device),
            top_k=column(top_ks, torch.int64) if min(top_ks) < vocab_size else None,
            top_p=column([p.top_p for p in params], torch.float32) if any(p.top_p < 1 for p in params) else None,
            repetition_penalty=column([p.repetition_penalty for p in params], torch.float32)
            if any(p.repetition_penalty != 1 for p in params)
            else None,
        )


def sample(logits: Tensor, controls: SamplingControls, uniform: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw one token a row.

    `logits` float32 [num_rows, vocab_size]; `uniform` float64 [num_rows] in [0, 1); `seen` bool [num_rows,
    vocab_size], the tokens of prompt and output, needed only when a repetition penalty is set. Returns token ids
    int64 [num_rows] and their log-probabilities float32 [num_rows] under the distribution they were drawn from.
    """
    if controls.repetition_penalty is not None:
        assert seen is not None
        penalised = torch.where(logits > 0, logits / controls.repetition_penalty, logits * controls.repetition_penalty)
        logits = torch.where(seen, penalised, logits)
    if isinstance(controls.temperature, Tensor) or controls.temperature != 1.0:
        logits = logits / controls.temperature
    if controls.greedy is not True and (controls.top_k is not None or controls.top_p is not None):
        logits = _filter_top(logits, controls)
    log_probs = torch.log_softmax(logits, dim=-1)  # [num_rows, vocab_size]
    token_ids = _choose(log_probs, controls.greedy, uniform)  # [num_rows]
    return token_ids, log_probs.gather(1, token_ids.unsqueeze(1)).squeeze(1)


def _choose(log_probs: Tensor, greedy: bool | Tensor, uniform: Tensor) -> Tensor:
    if greedy is True:
        return log_probs.argmax(dim=-1)
    # float64: in float32 a long sum loses the small probabilities that come late in the vocabulary
    cumulative = log_probs.exp().cumsum(dim=-1, dtype=torch.float64)
    threshold = uniform.unsqueeze(1) * cumulative[:, -1:]
    # right=True finds the first cumulative value above the threshold, so a token of probability 0 is never drawn
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(1).clamp_(max=log_probs.shape[1] - 1)
    if greedy is False:
        return drawn
    return torch.where(greedy, log_probs.argmax(dim=-1), drawn)


def _filter_top(logits: Tensor, controls: SamplingControls) -> Tensor:
    """Set to -inf what top-k and then top-p leave out. Rows that are greedy keep their best token and so their
    choice."""
    values, order = logits.sort(dim=-1, descending=True)
    drop = torch.zeros_like(values, dtype=torch.bool)
    if controls.top_k is not None:
        drop |= torch.arange(values.shape[1], device=values.device) >= controls.top_k
    if controls.top_p is not None:
        probs = values.masked_fill(drop, -torch.inf).softmax(dim=-1)
        # the mass before a token decides, so that the token that crosses top_p stays
        drop |= (probs.cumsum(dim=-1) - probs) >= controls.top_p
    if isinstance(controls.greedy, Tensor):  # a greedy row reports the unfiltered distribution
        drop &= ~controls.greedy.unsqueeze(1)
    return torch.full_like(logits, -torch.inf).scatter(1, order, values.masked_fill(drop, -torch.inf))


_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def noise_key(*numbers: int) -> int:
    """A 64-bit key that depends on all `numbers` (splitmix64 finaliser, applied number by number)."""
    state = 0
    for number in numbers:
        state = (state + number + _STEP) & _MASK
        state = ((state ^ (state >> 30)) * _MIX[0]) & _MASK
        state = ((state ^ (state >> 27)) * _MIX[1]) & _MASK
        state ^= state >> 31
    return state


def uniforms(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One number in [0, 1) for each (key, position): splitmix64 as a counter-based generator (Steele et al. 2014).

    `keys` uint64 [num_rows], `positions` int64 [num_rows]; returns float64 [num_rows].
    """
    state = keys + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP)  # wraps around, as it should
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX[0])
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX[1])
    state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)) * 2.0**-53
