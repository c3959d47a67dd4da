"""What one session gives back, and the queue fields it becomes.

verl 0.9.1: experimental/agent_loop/agent_loop.py, AgentLoopOutput and AgentLoopMetrics.

Differs from verl: dataclasses instead of pydantic models, so "was it set?" is read from None: a field left at None is
not stored. `mm_processor_output` is stored, None included, whenever `mm_processor_kwargs` is set; both shipped loops
set the latter, as in verl.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class AgentLoopMetrics:
    """Where the time of a session went. A part that did not happen stays None and is not stored."""

    generate_sequences: float | None = None  # seconds waiting for the LLM server, all turns
    tool_calls: float | None = None  # seconds in tools
    compute_score: float | None = None  # seconds in the reward function
    num_preempted: int | None = None  # times the server threw the request out and began again; -1: it does not say

    def add(self, name: str, amount: float) -> None:
        """Add to a part, which may not have happened before."""
        setattr(self, name, (getattr(self, name) or 0) + amount)

    def as_dict(self) -> dict[str, Any]:
        """The parts that happened."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass
class AgentLoopOutput:
    """One trajectory. P prompt tokens, R response tokens, S = P + R."""

    prompt_ids: list[int]
    """[P]"""
    response_ids: list[int]
    """[R], everything after the prompt: what the model wrote and what the tools answered."""
    response_mask: list[int]
    """[R], 1 where the model wrote the token, 0 where a tool did."""
    metrics: AgentLoopMetrics = field(default_factory=AgentLoopMetrics)
    response_logprobs: list[float] | None = None
    """[R], as the server sampled them; 0.0 where a tool wrote. None: the server was not asked."""
    routed_experts: Any = None
    """[at most S, layers, top_k], for routing replay of mixture-of-experts models."""
    multi_modal_data: dict[str, Any] | None = None
    """Images and the like. Never stored in the queue."""
    reward_score: float | None = None
    """Score of the trajectory. None: not scored by the loop; the worker scores it if it has a reward function."""
    num_turns: int | None = None
    """Chat turns: user, assistant and tool."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """Anything else: weight versions, turn scores, tool rewards."""
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_processor_output: list[dict[str, Any]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields of this trajectory as the queue stores them.

        Tensors: prompts, responses, response_mask int64; rollout_log_probs, rm_scores float32 (the score on the last
        token, 0 elsewhere); routed_experts int16 [S, layers, top_k]; teacher_ids and teacher_logprobs if they are in
        extra_fields. Objects: metrics, extra_fields, num_turns, mm_processor_kwargs, mm_processor_output.
        """
        fields: dict[str, Any] = {
            "prompts": torch.tensor(self.prompt_ids, dtype=torch.int64),
            "responses": torch.tensor(self.response_ids, dtype=torch.int64),
            "response_mask": torch.tensor(self.response_mask, dtype=torch.int64),
            "metrics": self.metrics.as_dict(),
        }
        if self.response_logprobs is not None:
            fields["rollout_log_probs"] = torch.tensor(self.response_logprobs, dtype=torch.float32)
        if self.routed_experts is not None:
            fields["routed_experts"] = self._experts_of_all_tokens()
        if self.reward_score is not None:
            rm_scores = torch.zeros(len(self.response_ids), dtype=torch.float32)
            rm_scores[-1] = self.reward_score
            fields["rm_scores"] = rm_scores
        if self.num_turns is not None:
            fields["num_turns"] = self.num_turns
        if self.mm_processor_kwargs is not None:
            fields["mm_processor_kwargs"] = self.mm_processor_kwargs
            fields["mm_processor_output"] = self.mm_processor_output
        extra_fields = dict(self.extra_fields)
        for name in ("teacher_ids", "teacher_logprobs"):
            if extra_fields.get(name) is not None:
                fields[name] = extra_fields.pop(name)
        fields["extra_fields"] = extra_fields
        return fields

    def _experts_of_all_tokens(self) -> Tensor:
        """The server records no experts for tokens it never read, such as the last one: zeros stand in for them."""
        recorded = torch.as_tensor(self.routed_experts, dtype=torch.int16)  # [tokens read, layers, top_k]
        num_tokens = len(self.prompt_ids) + len(self.response_ids)
        experts = recorded.new_zeros((num_tokens, *recorded.shape[1:]))
        num_recorded = min(len(recorded), num_tokens)
        experts[:num_recorded] = recorded[:num_recorded]
        return experts
