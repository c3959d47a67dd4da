"""Finds the tool calls in what a model wrote.

verl 0.9.1: experimental/agent_loop/tool_parser.py, ToolParser and HermesToolParser. `multi_turn.format` chooses:

    hermes        <tool_call>{"name": "calculator", "arguments": {"expression": "12*59"}}</tool_call>
    calculator    <tool_call>12*59</tool_call>, short for the above: a tiny model need not learn JSON

Differs from verl: a call that cannot be read becomes a FunctionCall with `error`, which the loop answers in words; verl
logs it and goes on as if the model had called nothing. Left out: the formats of gpt-oss, Qwen3-Coder, Gemma and others.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kitlib.agent_loop.errors import AgentLoopError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class FunctionCall:
    """One call as the model wrote it."""

    name: str
    arguments: str  # JSON; the model may have written anything
    error: str | None = None  # why the call could not be read


class ToolParser(ABC):
    """Reads the tokens of one model turn."""

    stop_token_ids: tuple[int, ...] = ()  # end the turn here; empty where the model ends it itself after a call

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def extract_tool_calls(self, response_ids: Sequence[int]) -> tuple[str, list[FunctionCall]]:
        """The text outside of calls, and the calls in order."""


_PARSERS: dict[str, type[ToolParser]] = {}
_Parser = TypeVar("_Parser", bound=type[ToolParser])


def register_tool_parser(name: str) -> Callable[[_Parser], _Parser]:
    """Make a parser available as `multi_turn.format=name`."""

    def decorate(parser: _Parser) -> _Parser:
        _PARSERS[name] = parser
        return parser

    return decorate


def get_tool_parser(name: str, tokenizer: PreTrainedTokenizerBase) -> ToolParser:
    """A parser for `multi_turn.format`. Raises AgentLoopError for an unknown one."""
    if name not in _PARSERS:
        raise AgentLoopError(
            f"actor_rollout_ref.rollout.multi_turn.format={name}: no tool parser is called that; there are "
            f"{', '.join(sorted(_PARSERS))}"
        )
    return _PARSERS[name](tokenizer)


class _TaggedToolParser(ToolParser):
    """Calls stand between <tool_call> and </tool_call>; subclasses read what is between."""

    def extract_tool_calls(self, response_ids: Sequence[int]) -> tuple[str, list[FunctionCall]]:
        # special tokens are kept: some tokenizers count <tool_call> as one
        text = str(self.tokenizer.decode(list(response_ids), skip_special_tokens=False))
        text = text.removesuffix(self.tokenizer.eos_token or "")
        calls = [self.read(inside.strip()) for inside in _CALL.findall(text)]
        return (_CALL.sub("", text) if calls else text), calls

    @abstractmethod
    def read(self, inside: str) -> FunctionCall:
        """The call between two tags."""


@register_tool_parser("hermes")
class HermesToolParser(_TaggedToolParser):
    """A JSON object with `name` and `arguments`."""

    def read(self, inside: str) -> FunctionCall:
        try:
            call = json.loads(inside)
            return FunctionCall(str(call["name"]), json.dumps(call["arguments"], ensure_ascii=False))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = f"the tool call is not a JSON object with name and arguments ({type(error).__name__}: {error})"
            return FunctionCall("", inside, error=reason)


@register_tool_parser("calculator")
class CalculatorToolParser(_TaggedToolParser):
    """The bare expression, for the tool called `calculator` with the parameter `expression`."""

    def read(self, inside: str) -> FunctionCall:
        return FunctionCall("calculator", json.dumps({"expression": inside}))
