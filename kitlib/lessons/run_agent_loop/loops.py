"""Agent loops for a lesson: one that gives several outputs a session, and one whose sessions die.

`send_to` chooses the loop of a prompt the way a dataset does it, with the column `agent_name`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

from tensordict import NonTensorStack, TensorDict

from kitlib.agent_loop import AgentLoopOutput, ToolAgentLoop, register


@register("turn_by_turn")
class TurnByTurnLoop(ToolAgentLoop):
    """As the tool agent, but every turn of the model is an output of its own: its prompt is all that was said before.

    A loop that shortens or rewrites its context between two turns has to do it so, because one row can only hold
    tokens that followed each other.
    """

    async def run(  # type: ignore[override]
        self, sampling_params: dict[str, Any], **row: Any
    ) -> list[AgentLoopOutput]:
        return turns_of(await super().run(sampling_params, **row))


def turns_of(whole: AgentLoopOutput) -> list[AgentLoopOutput]:
    """One output for each run of tokens that the model wrote."""
    outputs, end = [], 0
    for by_model, members in groupby(whole.response_mask):
        begin, end = end, end + len(list(members))
        if by_model:
            outputs.append(
                AgentLoopOutput(
                    prompt_ids=[*whole.prompt_ids, *whole.response_ids[:begin]],
                    response_ids=whole.response_ids[begin:end],
                    response_mask=[1] * (end - begin),
                    response_logprobs=whole.response_logprobs and whole.response_logprobs[begin:end],
                    num_turns=whole.num_turns,
                    metrics=whole.metrics,
                    extra_fields=dict(whole.extra_fields),
                    mm_processor_kwargs={},
                )
            )
    return outputs


class MortalLoop(ToolAgentLoop):
    """As the tool agent, but the sessions in `dying` end with an exception after they have generated."""

    dying: Collection[int] = ()

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """See AgentLoopBase.run. Raises ConnectionError in a session that has to die."""
        output = await super().run(sampling_params, **row)
        if row["session_id"] in self.dying:
            raise ConnectionError("the tool server hung up")
        return output


def mortal(dying: Collection[int]) -> str:
    """Register a loop in which these sessions die; returns its agent_name."""
    name = "mortal_" + "_".join(map(str, dying))
    register(name)(type("MortalLoop", (MortalLoop,), {"dying": frozenset(dying)}))
    return name


def send_to(prompts: TensorDict, agent_names: str | Sequence[str]) -> TensorDict:
    """The same prompts for another agent loop: one name for all of them, or one a prompt."""
    names = [agent_names] * len(prompts) if isinstance(agent_names, str) else list(agent_names)
    sent = prompts.clone(recurse=False)
    sent["agent_name"] = NonTensorStack(*names)
    return sent
