"""What an agent loop talks to: one generate call, whichever server answers it.

verl 0.9.1: workers/rollout/llm_server.py, LLMServerClient and FullyAsyncLLMServerClient. Left out: images,
priorities, retries while the pool is empty. The request_id goes through to the server (verl sends a fresh one a turn,
because vLLM finds a shared prefix by content).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from kitlib.rollout.balancer import GlobalRequestLoadBalancer
from kitlib.rollout.protocol import TokenOutput
from kitlib.rollout.sampling import SamplingParams

_PAUSE_AFTER_REJECTION = (
    0.02  # seconds; a server that parks requests needs no pause, one that rejects them would be asked in a loop
)


class LLMServerClient:
    """Sends a request to the server that `load_balancer` names, and passes an aborted output on as it is."""

    def __init__(self, load_balancer: GlobalRequestLoadBalancer) -> None:
        self._load_balancer = load_balancer

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any]
    ) -> TokenOutput:
        """Continue `prompt_ids`; requests of one `request_id` go to one server. Raises what the server raises."""
        server_id, server = self._load_balancer.acquire_server(request_id)
        try:
            return await server.generate(prompt_ids, sampling_params, request_id)
        finally:
            self._load_balancer.release_server(server_id)


class FullyAsyncLLMServerClient(LLMServerClient):
    """Resumes what was aborted, so that the agent loop sees one output made over several attempts (partial rollout).

    The token budget is max_tokens, else `response_length`, and counts over all attempts. Tokens and log-probs of the
    attempts are joined; min_global_steps and max_global_steps span the weight versions that made a token.
    """

    def __init__(self, load_balancer: GlobalRequestLoadBalancer, response_length: int | None = None) -> None:
        super().__init__(load_balancer)
        self._response_length = response_length

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any]
    ) -> TokenOutput:
        """As LLMServerClient.generate, and never "aborted": it waits for the server to resume instead."""
        params = dict(sampling_params)
        budget = SamplingParams.parse(params).max_tokens
        params.pop("max_new_tokens", None)
        budget = self._response_length if budget is None else budget
        joined: TokenOutput | None = None
        while True:
            num_made = len(joined.token_ids) if joined is not None else 0
            if budget is not None:
                params["max_tokens"] = budget - num_made
            prefix = [*prompt_ids, *joined.token_ids] if joined is not None else prompt_ids
            output = await super().generate(request_id, prompt_ids=prefix, sampling_params=params)
            if output.token_ids or output.stop_reason != "aborted":
                joined = output if joined is None else _join(joined, output)
            if output.stop_reason != "aborted":
                assert joined is not None
                return joined
            if not output.token_ids:
                await asyncio.sleep(_PAUSE_AFTER_REJECTION)


def _join(first: TokenOutput, second: TokenOutput) -> TokenOutput:
    """The output of two attempts, the second of which continued the first."""
    log_probs = None if first.log_probs is None else first.log_probs + (second.log_probs or [])
    extra_fields = dict(
        second.extra_fields,
        min_global_steps=min(first.extra_fields["min_global_steps"], second.extra_fields["min_global_steps"]),
        max_global_steps=max(first.extra_fields["max_global_steps"], second.extra_fields["max_global_steps"]),
        num_cached_tokens=first.extra_fields[
            "num_cached_tokens"
        ],  # of the prompt; a resume finds its own tokens cached
    )
    num_preempted = None
    if first.num_preempted is not None or second.num_preempted is not None:
        num_preempted = (first.num_preempted or 0) + (second.num_preempted or 0)
    return TokenOutput(first.token_ids + second.token_ids, log_probs, second.stop_reason, num_preempted, extra_fields)
