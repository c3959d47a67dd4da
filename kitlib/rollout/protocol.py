"""What a rollout server is: the record it answers with and the verbs it understands.

verl 0.9.1: workers/rollout/replica.py, TokenOutput and RolloutReplica (the verbs); the generate call is that of
workers/rollout/vllm_rollout/vllm_async_server.py, vLLMHttpServer.generate. Left out: routed_experts, multi-modal
inputs, priorities, the OpenAI HTTP address, and the split of a replica into workers on several nodes.

    serving --abort_all_requests--> paused --resume_generation--> serving       requests that come in while paused wait
    serving --sleep--------------> asleep --wake_up------------> serving        the KV cache is freed while asleep
    any     --close--------------> closed                                       waiting requests get ServerClosedError
    any     --an exception-------> failed                                       waiting and later requests raise it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from kitlib.errors import KitError

StopReason = Literal["completed", "length", "aborted"]


class RolloutError(KitError):
    """A request, a parameter or a state that a rollout server refuses; the message says what would be accepted."""


class ServerClosedError(RolloutError):
    """The server was closed before the request was finished, or before it came in."""


@dataclass
class TokenOutput:
    """The answer to one generation request.

    `token_ids`      the new tokens, without the prompt. The end-of-sequence token that stopped the request is included.
    `log_probs`      one a token, or None when the request did not ask for them. They are log-probabilities under the
                     distribution the token was drawn from: after repetition penalty, temperature, top-k and top-p.
                     verl asks vLLM for the same ones (rollout.logprobs_mode: processed_logprobs), because the trainer
                     divides its logits by the same temperature. A greedy token (temperature 0) reports temperature 1,
                     as vLLM does.
    `stop_reason`    "completed": an end-of-sequence or stop token was made; "length": max_tokens or max_model_len was
                     reached (verl reports these as "completed" too); "aborted": the server was told to stop,
                     `token_ids` holds what was made so far; None: unknown.
    `num_preempted`  times the request lost its place and was computed again; None when the server does not count.
    `extra_fields`   "global_steps": weight version of the last token, "min_global_steps" and "max_global_steps": oldest
                     and newest version among the tokens, "num_cached_tokens": prompt tokens that needed no computation.
    """

    token_ids: list[int]
    log_probs: list[float] | None = None
    stop_reason: StopReason | None = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class LLMServer(Protocol):
    """One model replica that answers generation requests. `generate` is awaited; the other verbs return when done."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str
    ) -> TokenOutput:
        """Continue `prompt_ids`. `sampling_params`: see kitlib.rollout.sampling.SamplingParams for names and defaults.

        `request_id` names the conversation: a later request of the same name may find its prefix computed already.
        """
        ...

    def update_weights(self, state_dict: Mapping[str, Tensor], global_steps: int) -> None:
        """Load new weights between two tokens; outputs report `global_steps` as their version from the next token
        on."""
        ...

    def abort_all_requests(self, reject_request: bool = False) -> int:
        """End every request with stop_reason "aborted" and start no new one until resume_generation. Returns how many.

        Requests that come in meanwhile wait, or are answered "aborted" with no tokens if `reject_request`.
        """
        ...

    def resume_generation(self) -> None:
        """Serve again after abort_all_requests."""
        ...

    def sleep(self) -> None:
        """Free the KV cache and start no request until wake_up. RolloutError while requests are being decoded."""
        ...

    def wake_up(self) -> None:
        """Serve again after sleep."""
        ...

    def close(self) -> None:
        """End the server. Waiting requests raise ServerClosedError. May be called twice."""
        ...
