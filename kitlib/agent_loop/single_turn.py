"""SingleTurnAgentLoop: one question, one answer.

verl 0.9.1: experimental/agent_loop/single_turn_agent_loop.py. Left out: images and request priorities.
"""

from __future__ import annotations

import time
from typing import Any

from kitlib.agent_loop.base import AgentLoopBase, register
from kitlib.agent_loop.output import AgentLoopMetrics, AgentLoopOutput


@register("single_turn_agent")
class SingleTurnAgentLoop(AgentLoopBase):
    """Renders `raw_prompt`, generates up to rollout.response_length tokens, returns them."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """See AgentLoopBase.run; reads `raw_prompt` of the row."""
        prompt_ids = self.render_prompt(row["raw_prompt"])
        started = time.perf_counter()
        answer = await self.generate(self.new_request_id(), prompt_ids, sampling_params, self.response_length)
        seconds = time.perf_counter() - started
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=answer.token_ids,
            response_mask=[1] * len(answer.token_ids),
            response_logprobs=answer.log_probs,
            num_turns=2,
            metrics=AgentLoopMetrics(
                generate_sequences=seconds,
                num_preempted=-1 if answer.num_preempted is None else answer.num_preempted,
            ),
            extra_fields={**answer.extra_fields, "turn_scores": [], "tool_rewards": []},
            mm_processor_kwargs={},
        )
