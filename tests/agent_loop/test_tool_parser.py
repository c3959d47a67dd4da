"""From the tokens of a model turn to calls."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kitlib.agent_loop import AgentLoopError, FunctionCall
from kitlib.agent_loop.tool_parser import get_tool_parser
from tests.agent_loop.fakes import TOKENIZER, ids


def parse(parser: str, written: str) -> tuple[str, list[FunctionCall]]:
    """Parse a text with capitals and quotes, which the shipped tokenizer does not know."""
    tokenizer: Any = SimpleNamespace(decode=lambda ids, skip_special_tokens: written, eos_token="<|im_end|>")
    return get_tool_parser(parser, tokenizer).extract_tool_calls([1])


def test_calculator_calls_with_the_real_tokenizer() -> None:
    parser = get_tool_parser("calculator", TOKENIZER)
    content, calls = parser.extract_tool_calls(ids("so <tool_call> 12*59 </tool_call><|im_end|>"))
    assert calls == [FunctionCall("calculator", '{"expression": "12*59"}')]
    assert content == "so "
    assert parser.extract_tool_calls(ids("####708<|im_end|>")) == ("####708", [])


def test_hermes_calls() -> None:
    one = {"name": "look_up", "arguments": {"word": "Grüße", "n": 2}}
    content, calls = parse(
        "hermes", f"a<tool_call>\n{json.dumps(one)}\n</tool_call>b<tool_call>{json.dumps(one)}</tool_call>"
    )
    assert content == "ab"
    assert [call.name for call in calls] == ["look_up", "look_up"]
    assert json.loads(calls[0].arguments) == one["arguments"]
    assert "Grüße" in calls[0].arguments


@pytest.mark.parametrize(
    "inside", ["{not json", '{"name": "f"}', '["f", 1]', "", "3", '{"name": "f", "arguments"', "[" * 5000]
)
def test_an_unreadable_call_carries_its_error(inside: str) -> None:
    content, (call,) = parse("hermes", f"<tool_call>{inside}</tool_call>")
    assert content == ""
    assert call.error is not None
    assert "not a JSON object with name and arguments" in call.error


@pytest.mark.parametrize("written", ["<tool_call>12*59", "12*59</tool_call>", "</tool_call><tool_call>", ""])
def test_half_a_call_is_no_call(written: str) -> None:
    assert parse("calculator", written) == (written, [])


def test_unknown_format_names_the_key() -> None:
    with pytest.raises(AgentLoopError, match=r"multi_turn.format=llama.*calculator, hermes"):
        get_tool_parser("llama", TOKENIZER)
