"""Tools that a model can call: Python functions, and classes with a state of their own.

verl 0.9.1: tools/function_tool.py, tools/base_tool.py, tools/tool_registry.py, tools/schemas.py.

    # my_tools.py, named by actor_rollout_ref.rollout.multi_turn.function_tool_path
    from kitlib.agent_loop import function_tool

    @function_tool
    def look_up(word: str) -> str:
        '''Look up a word.

        Args:
            word: what to look up.
        '''
        return "a text"

    # my_tools.yaml, named by actor_rollout_ref.rollout.multi_turn.tool_config_path
    tools:
      - class_name: my_package.MyTool      # a subclass of BaseTool
        config: {type: native}
        tool_schema: {type: function, function: {name: my_tool, description: ..., parameters: {...}}}

Differs from verl: the decorator marks the function instead of filling a global registry, so a file may also import a
decorated function from elsewhere; a schema is a plain dict in OpenAI's form. Left out: images in tool responses.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from kitlib.agent_loop.errors import AgentLoopError
from kitlib.user_code import load_user_module, resolve_user_path

_MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
_MARK = "__kitlib_function_tool__"


@dataclass
class ToolResponse:
    """What the model reads back."""

    text: str | None = None


ToolResult = tuple[ToolResponse, float, dict[str, Any]]  # response, tool reward, tool metrics


@dataclass(frozen=True)
class FunctionTool:
    """A stateless tool. A plain function runs in a thread, a coroutine function on the event loop."""

    name: str
    fn: Callable[..., Any]
    tool_schema: dict[str, Any]

    async def call(self, parameters: dict[str, Any]) -> ToolResult:
        """Call the function with the model's arguments."""
        if inspect.iscoroutinefunction(self.fn):
            return normalize_function_tool_return(await self.fn(**parameters))
        return normalize_function_tool_return(await asyncio.to_thread(self.fn, **parameters))


class BaseTool:
    """A tool with a life of its own in each call: create, execute, release.

    Args:
        config: the `config` block of the YAML file.
        tool_schema: OpenAI's form; subclasses may override `get_openai_tool_schema` instead.
    """

    def __init__(self, config: dict[str, Any], tool_schema: dict[str, Any] | None) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name: str = self.tool_schema["function"]["name"]

    def get_openai_tool_schema(self) -> dict[str, Any]:
        """The schema of a tool whose YAML entry has none."""
        raise AgentLoopError(f"tool {type(self).__name__} has no tool_schema in {_MULTI_TURN}.tool_config_path")

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Begin a call. `create_kwargs` comes from the row: tools_kwargs[name]["create_kwargs"]."""
        return instance_id or str(uuid4()), ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> ToolResult:
        """Do the work; `agent_data` is the state of the session."""
        return ToolResponse(text=""), 0.0, {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End a call; runs after an exception too."""


Tool = FunctionTool | BaseTool


def function_tool(name: str | Callable[..., Any] | None = None, *, schema: dict[str, Any] | None = None) -> Any:
    """Decorator: make a function a tool, called by its own name or by `name`.

    Without `schema`, transformers infers it: every parameter needs a type and a line under `Args:` of the docstring.
    """
    if callable(name):
        return function_tool()(name)

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        tool_name = name or fn.__name__
        setattr(fn, _MARK, FunctionTool(tool_name, fn, schema or _schema_of(fn, tool_name)))
        return fn

    return decorate


def _schema_of(fn: Callable[..., Any], tool_name: str) -> dict[str, Any]:
    from transformers.utils import get_json_schema

    schema = get_json_schema(fn)
    schema["function"]["name"] = tool_name
    return schema


def normalize_function_tool_return(value: Any) -> ToolResult:
    """(response, reward, metrics) of what a function returned: a response, or a tuple of one to three of these."""
    if not isinstance(value, tuple):
        return _as_response(value), 0.0, {}
    if not 1 <= len(value) <= 3:
        raise AgentLoopError(f"a tool returned a tuple of {len(value)}; expected (response, reward, metrics) or less")
    response, reward, metrics = (*value, None, None)[:3]
    return _as_response(response), 0.0 if reward is None else float(reward), dict(metrics or {})


def _as_response(value: Any) -> ToolResponse:
    if isinstance(value, ToolResponse):
        return value
    return ToolResponse(text=json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value))


def load_all_tools(tool_config_path: str | None, function_tool_path: str | None) -> list[Tool]:
    """The tools of both files, either of which may be None. Raises AgentLoopError if two have one name."""
    tools: list[Tool] = []
    if tool_config_path:
        tools += initialize_tools_from_config(tool_config_path)
    if function_tool_path:
        tools += load_function_tools_from_path(function_tool_path)
    names = [tool.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise AgentLoopError(
            f"two tools are called {twice[0]!r}: each name must be unique over {_MULTI_TURN}.tool_config_path and "
            f"{_MULTI_TURN}.function_tool_path"
        )
    return tools


def load_function_tools_from_path(path: str) -> list[FunctionTool]:
    """The decorated functions of a Python file, in the order of the file."""
    key = f"{_MULTI_TURN}.function_tool_path"
    module = load_user_module(path, key)
    tools = [getattr(value, _MARK) for value in vars(module).values() if hasattr(value, _MARK)]
    if not tools:
        raise AgentLoopError(f"{key}={path}: no function in it has the decorator @function_tool")
    return tools


def initialize_tools_from_config(path: str) -> list[BaseTool]:
    """Instances of the BaseTool subclasses that a YAML file lists under `tools`."""
    from omegaconf import OmegaConf

    key = f"{_MULTI_TURN}.tool_config_path"
    content: Any = OmegaConf.to_container(OmegaConf.load(resolve_user_path(path, key)), resolve=True)
    entries: Sequence[dict[str, Any]] = content["tools"]
    tools = []
    for entry in entries:
        try:
            module, _, class_name = entry["class_name"].rpartition(".")
            tool_class = getattr(importlib.import_module(module), class_name)
        except (KeyError, ImportError, AttributeError, ValueError) as error:
            raise AgentLoopError(f"{key}={path}: entry {entry!r} names no tool class: {error!r}") from error
        tools.append(tool_class(config=entry.get("config") or {}, tool_schema=entry.get("tool_schema")))
    return tools
