"""Mutations under which 04_run_agent_loop must fail."""

from __future__ import annotations


def the_mask_covers_the_tool() -> None:
    """The tool agent counts the tokens of the tool as the model's own."""
    from kitlib.agent_loop import ToolAgentLoop

    original = ToolAgentLoop.run

    async def run(self, sampling_params, **row):
        output = await original(self, sampling_params, **row)
        output.response_mask = [1] * len(output.response_ids)
        return output

    ToolAgentLoop.run = run


def a_prompt_is_finished_before_its_sessions() -> None:
    """The last status is written before the sessions have settled."""
    from kitlib.agent_loop import AgentLoopWorkerTQ

    original = AgentLoopWorkerTQ._run_prompt

    async def run_prompt(self, loop, row, sampling_params, validate):
        await self.tq.async_kv_put(key=row["uid"], partition_id="train", tag={"status": "finished"})
        await original(self, loop, row, sampling_params, validate)

    AgentLoopWorkerTQ._run_prompt = run_prompt


def a_dead_session_is_not_told() -> None:
    """A session that raises counts as one without output, and its prompt as finished."""
    from kitlib.agent_loop import AgentLoopWorkerTQ

    original = AgentLoopWorkerTQ._run_session

    async def run_session(self, *arguments):
        try:
            return await original(self, *arguments)
        except ConnectionError:
            return [], None

    AgentLoopWorkerTQ._run_session = run_session


def a_waiting_request_waits_for_the_longest() -> None:
    """A request joins only when no other is being decoded."""
    from kitlib.rollout.engine import DecodingEngine

    original = DecodingEngine.step
    DecodingEngine.step = lambda self: self._decode() if self.num_active else original(self)
