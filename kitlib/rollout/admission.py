"""What a server accepts: a prompt that fits, parameters that make sense, and a budget of tokens.

verl 0.9.1: the opening of vLLMHttpServer.generate in workers/rollout/vllm_rollout/vllm_async_server.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kitlib.rollout.protocol import RolloutError
from kitlib.rollout.sampling import SamplingParams, noise_key
from kitlib.rollout.slot_table import Request


@dataclass
class Admission:
    """Turns the arguments of generate into a Request. See TransformersServer for the fields."""

    vocab_size: int
    max_model_len: int
    prompt_length: int | None
    response_length: int | None
    seed: int
    num_arrivals: int = field(default=0, init=False)

    def request(self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str) -> Request:
        """RolloutError names the request and what is wrong with it."""
        params = SamplingParams.parse(sampling_params)
        prompt = np.array(prompt_ids, dtype=np.int64)
        self._check(prompt, request_id)
        budget = self._budget(len(prompt)) if params.max_tokens is None else params.max_tokens
        max_tokens = max(1, min(budget, self.max_model_len - len(prompt)))
        self.num_arrivals += 1  # two threads that race may share a number; their order of arrival is not fixed anyway
        key = noise_key(self.seed, self.num_arrivals) if params.seed is None else noise_key(params.seed)
        return Request(request_id, prompt, params, max_tokens, key)

    def _check(self, prompt: np.ndarray, request_id: str) -> None:
        if not 0 < len(prompt) < self.max_model_len:
            raise RolloutError(
                f"request {request_id!r}: a prompt of {len(prompt)} tokens, expected 1 to {self.max_model_len - 1} "
                "(actor_rollout_ref.rollout.max_model_len - 1)"
            )
        if prompt.min() < 0 or prompt.max() >= self.vocab_size:
            bad = prompt[(prompt < 0) | (prompt >= self.vocab_size)][0]
            raise RolloutError(
                f"request {request_id!r}: token id {bad} is outside the model's vocabulary of {self.vocab_size}: "
                "tokenizer and model do not belong together"
            )

    def _budget(self, prompt_length: int) -> int:
        """Tokens for a request that sets no max_tokens. A later turn has a longer prompt and gets what is left."""
        if self.response_length is None:
            return self.max_model_len
        if self.prompt_length is None:
            return self.response_length
        return min(self.response_length, self.prompt_length + self.response_length - prompt_length)
