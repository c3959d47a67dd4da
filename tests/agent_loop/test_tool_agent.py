"""One session of the tool agent against a client with fixed replies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kitlib.agent_loop import AgentLoopError, AgentLoopOutput, BaseTool, FunctionTool, ToolAgentLoop, ToolResponse
from kitlib.agent_loop.tools import Tool, load_all_tools
from kitlib.rollout.protocol import TokenOutput
from tests.agent_loop.fakes import LOG_PROB, TOKENIZER, WIDE_TOKENIZER, FakeClient, answer, config, ids, row, text

CALL = "<tool_call>12*59</tool_call>"
TOOL_TURN = "\n<|im_start|>tool\n708<|im_end|>\n<|im_start|>assistant\n"
SAMPLING = {"temperature": 1.0, "logprobs": True}


def calculator() -> list[Tool]:
    return load_all_tools(None, "pkg://kitlib.agent_loop.calculator")


def session(client: FakeClient, *overrides: str, tools: list[Tool] | None = None, **columns: Any) -> AgentLoopOutput:
    overrides = tuple(f"actor_rollout_ref.rollout.multi_turn.{override}" for override in overrides)
    loop = ToolAgentLoop(config(*overrides), client, TOKENIZER, calculator() if tools is None else tools)
    return asyncio.run(loop.run(SAMPLING, **row(**columns)))


def test_one_call_and_the_answer() -> None:
    client = FakeClient(CALL, "####708")
    output = session(client)
    assert text(output.prompt_ids) == "<|im_start|>user\n12*59=?<|im_end|>\n<|im_start|>assistant\n"
    assert text(output.response_ids) == CALL + "<|im_end|>" + TOOL_TURN + "####708<|im_end|>"
    lengths = [len(ids(CALL)) + 1, len(ids(TOOL_TURN)), len(ids("####708")) + 1]
    assert output.response_mask == [1] * lengths[0] + [0] * lengths[1] + [1] * lengths[2]
    assert output.response_logprobs == [LOG_PROB] * lengths[0] + [0.0] * lengths[1] + [LOG_PROB] * lengths[2]
    assert output.num_turns == 4  # user, assistant, tool, assistant
    assert output.extra_fields["tool_rewards"] == [0.0]
    assert output.metrics.tool_calls is not None


def test_each_turn_continues_the_tokens_so_far_within_the_budget() -> None:
    client = FakeClient(CALL, "####708")
    output = session(client)
    first, second = client.requests
    assert first["request_id"] == second["request_id"]
    assert first["prompt_ids"] == output.prompt_ids
    so_far = len(ids(CALL)) + 1 + len(ids(TOOL_TURN))
    assert second["prompt_ids"] == output.prompt_ids + output.response_ids[:so_far]
    assert (first["max_tokens"], second["max_tokens"]) == (64, 64 - so_far)
    assert second["temperature"] == 1.0


def test_an_answer_without_a_call_ends_the_session() -> None:
    output = session(FakeClient("####5"))
    assert output.num_turns == 2
    assert output.extra_fields["tool_rewards"] == []
    assert output.metrics.tool_calls is None


def test_weight_versions_span_all_turns() -> None:
    output = session(FakeClient(answer(CALL, step=3), answer("####708", step=5)))
    assert output.extra_fields["min_global_steps"] == 3
    assert output.extra_fields["max_global_steps"] == 5


def test_version_zero_counts() -> None:
    output = session(FakeClient(answer(CALL, step=0), answer("####708", step=0)))
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (0, 0)


@pytest.mark.parametrize(
    ("limit", "num_turns"), [("max_assistant_turns=1", 2), ("max_assistant_turns=2", 4), ("max_user_turns=2", 6)]
)
def test_turn_limits(limit: str, num_turns: int) -> None:
    output = session(FakeClient(*[CALL] * 5), "max_assistant_turns=null", limit)
    assert output.num_turns == num_turns
    assert output.response_mask[-1] == 1  # ends with what the model wrote


def test_the_token_budget_ends_the_session_without_a_tool_turn() -> None:
    length = len(ids(CALL)) + 1 + len(ids(TOOL_TURN))
    for room, num_turns in ((length, 2), (length + 1, 4)):
        client = FakeClient(CALL, TokenOutput(ids("#### "[:4]), [LOG_PROB], "length"))
        loop = ToolAgentLoop(config(f"data.max_response_length={room}"), client, TOKENIZER, calculator())
        output = asyncio.run(loop.run(SAMPLING, **row()))
        assert output.num_turns == num_turns
        assert len(output.response_ids) <= room
        assert len(output.response_ids) == len(output.response_mask)


def test_without_log_probs_there_are_none() -> None:
    silent = [TokenOutput(ids(reply + "<|im_end|>"), None, "completed") for reply in (CALL, "####708")]
    output = session(FakeClient(*silent))
    assert output.response_logprobs is None
    assert output.metrics.num_preempted == -1


def test_log_probs_for_some_turns_only_is_an_error() -> None:
    with pytest.raises(AgentLoopError, match="for some turns of a session only"):
        session(FakeClient(CALL, TokenOutput(ids("1"), None, "completed")))


@pytest.mark.parametrize(
    ("written", "told"),
    [("1/0", "error: division by zero"), ("ab", "error: not an expression"), ("9**9**9", "error: too large")],
)
def test_bad_expressions_are_told_to_the_model(written: str, told: str) -> None:
    output = session(FakeClient(f"<tool_call>{written}</tool_call>", "####1"), "max_tool_response_length=20")
    assert told[:10] in text(output.response_ids)
    assert output.num_turns == 4


def hermes_session(
    call: str, *tools: Tool, overrides: tuple[str, ...] = (), **columns: Any
) -> tuple[list[str], AgentLoopOutput]:
    """A session whose first turn is `call`, in the hermes format; what the tools answered, and the output."""
    settings = [f"actor_rollout_ref.rollout.multi_turn.{override}" for override in ("format=hermes", *overrides)]
    client = FakeClient(call, "done", tokenizer=WIDE_TOKENIZER)
    loop = ToolAgentLoop(config(*settings, "data.max_response_length=1000"), client, WIDE_TOKENIZER, tools)
    output = asyncio.run(loop.run(SAMPLING, **row(**columns)))
    turns = WIDE_TOKENIZER.decode(output.response_ids).split("<|im_start|>tool\n")[1:]
    return [turn.partition("<|im_end|>")[0] for turn in turns], output


def call_of(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def schema(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


async def repeat(word: str, times: int = 1) -> tuple[str, float]:
    return word * times, 0.25


REPEAT = FunctionTool("repeat", repeat, schema("repeat"))


class Notebook(BaseTool):
    """Writes down what happens to it."""

    def __init__(self) -> None:
        super().__init__({}, schema("notebook"))
        self.events: list[Any] = []

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        self.events.append(kwargs)
        return "page", ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        self.events.append((instance_id, parameters, kwargs["agent_data"].messages[0]["content"]))
        return ToolResponse(text=str(10 // parameters["by"])), 0.5, {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.events.append("released")


def test_a_function_tool_gets_its_arguments_and_may_reward() -> None:
    answers, output = hermes_session(call_of("repeat", word="ab", times=2), REPEAT)
    assert answers == ["abab"]
    assert output.extra_fields["tool_rewards"] == [0.25]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("<tool_call>{oops</tool_call>", "error: the tool call is not a JSON object with name and arguments"),
        (call_of("paint", word="ab"), "error: no tool is called 'paint'; there are repeat"),
        (call_of("repeat"), "error: repeat: "),
        (call_of("repeat", word="a", often=2), "error: repeat: "),
        (call_of("repeat", word="a", times="x"), "error: repeat: "),
        ('<tool_call>{"name": "repeat", "arguments": [1]}</tool_call>', "error: repeat: "),
    ],
)
def test_whatever_is_wrong_with_a_call_is_told_to_the_model(call: str, told: str) -> None:
    (answer_text,), output = hermes_session(call, REPEAT)
    assert answer_text.startswith(told)
    assert output.num_turns == 4
    assert output.extra_fields["tool_rewards"] == [0.0]


def test_a_tool_with_a_state_is_created_executed_and_released() -> None:
    notebook = Notebook()
    answers, output = hermes_session(
        call_of("notebook", by=2), notebook, tools_kwargs={"notebook": {"create_kwargs": {"color": "red"}}}
    )
    assert answers == ["5"]
    assert output.extra_fields["tool_rewards"] == [0.5]
    assert notebook.events == [{"create_kwargs": {"color": "red"}}, ("page", {"by": 2}, "12*59=?"), "released"]


def test_a_tool_that_raises_is_released_and_told() -> None:
    notebook = Notebook()
    answers, _ = hermes_session(call_of("notebook", by=0), notebook)
    assert answers[0].startswith("error: notebook: ")
    assert "zero" in answers[0]
    assert notebook.events[-1] == "released"


def test_calls_beside_each_other() -> None:
    two = call_of("repeat", word="a") + call_of("repeat", word="b") + call_of("repeat", word="c")
    assert hermes_session(two, REPEAT)[0] == ["a"]
    answers, output = hermes_session(two, REPEAT, overrides=("max_parallel_calls=2",))
    assert answers == ["a", "b"]
    assert output.num_turns == 4  # one tool turn, however many calls
    assert output.extra_fields["tool_rewards"] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("side", "expected"),
    [("left", "(truncated)...CDEF"), ("right", "ABCD...(truncated)"), ("middle", "AB...(truncated)...EF")],
)
def test_long_answers_are_cut(side: str, expected: str) -> None:
    overrides = ("max_tool_response_length=4", f"tool_response_truncate_side={side}")
    assert hermes_session(call_of("repeat", word="ABCDEF"), REPEAT, overrides=overrides)[0] == [expected]
    assert hermes_session(call_of("repeat", word="ABCD"), REPEAT, overrides=overrides)[0] == ["ABCD"]
