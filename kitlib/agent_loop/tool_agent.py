"""ToolAgentLoop: the model speaks, a tool answers, until the model answers without calling one.

verl 0.9.1: experimental/agent_loop/tool_agent_loop.py, ToolAgentLoop, AgentData and AgentState.

                     prompt rendered                a call in the text
          PENDING ------------------> GENERATING ----------------------> PROCESSING_TOOLS
                                        |   ^                                  |    |
             no call, or a limit of     |   |   answers appended as one turn   |    | the answers do not fit into
             turns or tokens reached    v   +----------------------------------+    v rollout.response_length
                                     TERMINATED <-----------------------------------+

    tokens          prompt_ids | 12*59 call <|im_end|> | \\n tool 708 ... assistant \\n | #### 708 <|im_end|>
    response_mask              | 1 1 1 ...             | 0 0 0 ...                     | 1 1 1
    log-probs                  | as sampled            | 0.0 0.0 ...                   | as sampled

Differs from verl: the server is told how many tokens are left of rollout.response_length (verl lets it write on and
cuts); a call that cannot be read is answered with an error text. Left out: images, tool selection per row, routed
experts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from kitlib.agent_loop.base import AgentLoopBase, LLMClient, register
from kitlib.agent_loop.chat import Message
from kitlib.agent_loop.errors import AgentLoopError
from kitlib.agent_loop.output import AgentLoopMetrics, AgentLoopOutput
from kitlib.agent_loop.tool_parser import FunctionCall, get_tool_parser
from kitlib.agent_loop.tools import BaseTool, FunctionTool, Tool
from kitlib.rollout.protocol import TokenOutput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


class AgentState(Enum):
    """Where a session stands; see the drawing above."""

    PENDING = "pending"
    GENERATING = "generating"
    PROCESSING_TOOLS = "processing_tools"
    TERMINATED = "terminated"


@dataclass
class AgentData:
    """Everything one session knows. Tools get it as `agent_data`; they may keep things in `extra_fields`."""

    messages: list[Message]
    tools_kwargs: dict[str, Any]
    request_id: str
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    response_logprobs: list[float] | None = None
    tool_calls: list[FunctionCall] = field(default_factory=list)  # of the last turn
    tool_rewards: list[float] = field(default_factory=list)
    turn_scores: list[float] = field(default_factory=list)
    user_turns: int = 0
    assistant_turns: int = 0
    metrics: AgentLoopMetrics = field(default_factory=AgentLoopMetrics)
    extra_fields: dict[str, Any] = field(default_factory=dict)


@register("tool_agent")
class ToolAgentLoop(AgentLoopBase):
    """Reads rollout.multi_turn.{max_assistant_turns, max_user_turns, max_parallel_calls, max_tool_response_length,
    tool_response_truncate_side, format} and rollout.response_length, a budget for model and tools together."""

    uses_tools = True

    def __init__(
        self, config: Any, server_client: LLMClient, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool] = ()
    ) -> None:
        super().__init__(config, server_client, tokenizer, tools)
        multi_turn = config.actor_rollout_ref.rollout.multi_turn
        self.max_assistant_turns: int | None = multi_turn.max_assistant_turns
        self.max_user_turns: int | None = multi_turn.max_user_turns
        self.max_parallel_calls: int = multi_turn.max_parallel_calls
        self.max_tool_response_length: int = multi_turn.max_tool_response_length
        self.tool_response_truncate_side: str = multi_turn.tool_response_truncate_side
        self.tool_parser = get_tool_parser(multi_turn.format, tokenizer)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """See AgentLoopBase.run; reads `raw_prompt` and `tools_kwargs` of the row."""
        if self.tool_parser.stop_token_ids:
            stops = {*(sampling_params.get("stop_token_ids") or ()), *self.tool_parser.stop_token_ids}
            sampling_params = {**sampling_params, "stop_token_ids": sorted(stops)}
        agent = AgentData(list(row["raw_prompt"]), row.get("tools_kwargs") or {}, self.new_request_id())
        state = AgentState.PENDING
        while state is not AgentState.TERMINATED:
            if state is AgentState.PENDING:
                agent.prompt_ids = self.render_prompt(agent.messages)
                state = AgentState.GENERATING
            elif state is AgentState.GENERATING:
                state = await self._generate_turn(agent, sampling_params)
            else:
                state = await self._process_tools(agent)
        return AgentLoopOutput(
            prompt_ids=agent.prompt_ids,
            response_ids=agent.response_ids,
            response_mask=agent.response_mask,
            response_logprobs=agent.response_logprobs,
            num_turns=agent.user_turns + agent.assistant_turns + 1,
            metrics=agent.metrics,
            extra_fields={
                **agent.extra_fields,
                "turn_scores": agent.turn_scores,
                "tool_rewards": agent.tool_rewards,
            },
            mm_processor_kwargs={},
        )

    async def _generate_turn(self, agent: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        started = time.perf_counter()
        budget = self.response_length - len(agent.response_ids)
        answer = await self.generate(agent.request_id, agent.prompt_ids + agent.response_ids, sampling_params, budget)
        agent.metrics.add("generate_sequences", time.perf_counter() - started)
        self._take_turn(agent, answer)

        if len(agent.response_ids) >= self.response_length:
            return AgentState.TERMINATED
        if self.max_assistant_turns and agent.assistant_turns >= self.max_assistant_turns:
            return AgentState.TERMINATED
        if self.max_user_turns and agent.user_turns >= self.max_user_turns:
            return AgentState.TERMINATED
        content, agent.tool_calls = self.tool_parser.extract_tool_calls(answer.token_ids)
        agent.messages.append(_assistant_message(content, agent.tool_calls))
        return AgentState.PROCESSING_TOOLS if agent.tool_calls else AgentState.TERMINATED

    def _take_turn(self, agent: AgentData, answer: TokenOutput) -> None:
        """Append what the model wrote; the weight version span grows to cover this turn."""
        first = agent.assistant_turns == 0
        if not first and (answer.log_probs is None) != (agent.response_logprobs is None):
            raise AgentLoopError("the LLM server returned log-probs for some turns of a session only")
        agent.assistant_turns += 1
        agent.response_ids = agent.response_ids + answer.token_ids
        agent.response_mask += [1] * len(answer.token_ids)
        if answer.log_probs is not None:
            agent.response_logprobs = (agent.response_logprobs or []) + answer.log_probs
        if first:
            agent.extra_fields.update(answer.extra_fields)
            agent.metrics.num_preempted = -1 if answer.num_preempted is None else answer.num_preempted
            return
        if answer.extra_fields.get("max_global_steps") is not None:
            agent.extra_fields["max_global_steps"] = answer.extra_fields["max_global_steps"]
        agent.metrics.add("num_preempted", answer.num_preempted or 0)

    async def _process_tools(self, agent: AgentData) -> AgentState:
        started = time.perf_counter()
        calls = agent.tool_calls[: self.max_parallel_calls]
        if len(calls) == 1:  # a task of its own would cost two more turns of the event loop
            answers = [await self._call_tool(calls[0], agent)]
        else:
            answers = await asyncio.gather(*(self._call_tool(call, agent) for call in calls))
        agent.metrics.add("tool_calls", time.perf_counter() - started)
        messages = [{"role": "tool", "content": text} for text, _ in answers]
        agent.messages += messages
        agent.tool_rewards += [reward for _, reward in answers]

        last_id = (agent.response_ids or agent.prompt_ids)[-1]
        turn_ids = self.chat.tool_turn(messages, last_id)
        if len(agent.response_ids) + len(turn_ids) >= self.response_length:
            return AgentState.TERMINATED  # no token would be left for the model
        agent.response_ids = agent.response_ids + turn_ids
        agent.response_mask += [0] * len(turn_ids)
        if agent.response_logprobs is not None:
            agent.response_logprobs += [0.0] * len(turn_ids)
        agent.user_turns += 1
        return AgentState.GENERATING

    async def _call_tool(self, call: FunctionCall, agent: AgentData) -> tuple[str, float]:
        """Text and reward of one call. Whatever is wrong with the call, or raised by the tool, is told to the model."""
        if call.error is not None:
            return f"error: {call.error}", 0.0
        tool = self.tools.get(call.name)
        if tool is None:
            return f"error: no tool is called {call.name!r}; there are {', '.join(self.tools)}", 0.0
        try:
            arguments = json.loads(call.arguments)
            if isinstance(tool, FunctionTool):
                response, reward, _ = await tool.call(arguments)
            else:
                response, reward, _ = await self._execute(tool, arguments, agent)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything, and the model has to hear of it
            logger.warning("tool %s raised on %s: %r", call.name, call.arguments, error)
            return f"error: {call.name}: {error}", 0.0
        return self._shortened(response.text or ""), reward

    async def _execute(self, tool: BaseTool, arguments: dict[str, Any], agent: AgentData) -> Any:
        create_kwargs = agent.tools_kwargs.get(tool.name, {}).get("create_kwargs", {})
        instance_id, _ = await tool.create(create_kwargs=create_kwargs)
        try:
            return await tool.execute(instance_id, arguments, agent_data=agent)
        finally:
            await tool.release(instance_id)

    def _shortened(self, text: str) -> str:
        limit, side = self.max_tool_response_length, self.tool_response_truncate_side
        if len(text) <= limit:
            return text
        if side == "left":
            return "(truncated)..." + text[-limit:]
        if side == "right":
            return text[:limit] + "...(truncated)"
        return text[: limit // 2] + "...(truncated)..." + text[-(limit // 2) :]


def _assistant_message(content: str, calls: Sequence[FunctionCall]) -> Message:
    """For tools that read the history; the tokens of the conversation are never rendered from it."""
    message: Message = {"role": "assistant", "content": content}
    if calls:
        functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
        message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
    return message
