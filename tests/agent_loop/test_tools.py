"""Loading tools from files, and what their return values become."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kitlib.agent_loop import AgentLoopError, BaseTool, FunctionTool, ToolResponse, function_tool
from kitlib.agent_loop.tools import load_all_tools, load_function_tools_from_path, normalize_function_tool_return
from kitlib.user_code import UserCodeError

ADD = '''
from kitlib.agent_loop import function_tool

@function_tool("plus")
def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b
'''


class Echo(BaseTool):
    """For the YAML test."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        return ToolResponse(text=self.config["prefix"] + parameters["text"]), 0.5, {}


def write(path: Path, body: str) -> str:
    path.write_text(body)
    return str(path)


def test_decorated_functions_of_a_file(tmp_path: Path) -> None:
    (tool,) = load_function_tools_from_path(write(tmp_path / "tools.py", ADD))
    assert tool.name == "plus"
    function = tool.tool_schema["function"]
    assert function["name"] == "plus"
    assert function["description"] == "Add two numbers."
    assert function["parameters"]["required"] == ["a"]
    assert function["parameters"]["properties"]["a"] == {"type": "integer", "description": "the first."}
    assert asyncio.run(tool.call({"a": 2})) == (ToolResponse("3"), 0.0, {})


def test_a_plain_function_runs_in_a_thread_and_a_coroutine_function_does_not() -> None:
    def blocking() -> int:
        return threading.get_ident()

    async def quick() -> int:
        return threading.get_ident()

    here = str(threading.get_ident())
    schema: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
    assert asyncio.run(FunctionTool("f", blocking, schema).call({}))[0].text != here
    assert asyncio.run(FunctionTool("f", quick, schema).call({}))[0].text == here


def test_a_given_schema_is_taken_as_it_is() -> None:
    schema = {"type": "function", "function": {"name": "f"}}

    @function_tool(schema=schema)
    def no_docstring(x):  # type: ignore[no-untyped-def]
        return x

    assert no_docstring(3) == 3
    assert no_docstring.__kitlib_function_tool__.tool_schema is schema


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("text", (ToolResponse("text"), 0.0, {})),
        (7, (ToolResponse("7"), 0.0, {})),
        ({"a": 1}, (ToolResponse('{"a": 1}'), 0.0, {})),
        (("text", 0.5), (ToolResponse("text"), 0.5, {})),
        (("text", None, {"m": 1}), (ToolResponse("text"), 0.0, {"m": 1})),
        (ToolResponse("as it is"), (ToolResponse("as it is"), 0.0, {})),
    ],
)
def test_return_values(value: Any, result: Any) -> None:
    assert normalize_function_tool_return(value) == result


def test_a_tuple_of_four_is_a_mistake() -> None:
    with pytest.raises(AgentLoopError, match="a tuple of 4"):
        normalize_function_tool_return((1, 2, 3, 4))


def test_tools_with_a_state_come_from_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo_tool.py").write_text(
        "from kitlib.agent_loop import BaseTool, ToolResponse\n"
        "class Echo(BaseTool):\n"
        "    async def execute(self, instance_id, parameters, **kwargs):\n"
        "        return ToolResponse(text=self.config['prefix'] + parameters['text']), 0.5, {}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write(
        tmp_path / "tools.yaml",
        "tools:\n- class_name: echo_tool.Echo\n  config: {type: native, prefix: 'a '}\n"
        "  tool_schema: {type: function, function: {name: echo}}\n",
    )
    (tool,) = load_all_tools(path, None)
    assert tool.name == "echo"
    assert isinstance(tool, BaseTool)
    response, reward, _ = asyncio.run(tool.execute("i", {"text": "word"}))
    assert (response.text, reward) == ("a word", 0.5)


def test_a_yaml_entry_that_names_no_class(tmp_path: Path) -> None:
    path = write(tmp_path / "tools.yaml", "tools:\n- class_name: no_such_module.Tool\n")
    with pytest.raises(AgentLoopError, match="tool_config_path=.*names no tool class.*no_such_module"):
        load_all_tools(path, None)


def test_a_tool_without_a_schema_says_where_to_put_it() -> None:
    with pytest.raises(AgentLoopError, match=r"Echo has no tool_schema in .*tool_config_path"):
        Echo({}, None)


def test_names_are_unique(tmp_path: Path) -> None:
    twice = write(tmp_path / "twice.py", ADD + ADD.replace("def add", "def other"))
    with pytest.raises(AgentLoopError, match="two tools are called 'plus'"):
        load_all_tools(None, twice)


def test_a_file_without_tools_or_without_existence(tmp_path: Path) -> None:
    with pytest.raises(AgentLoopError, match="no function in it has the decorator @function_tool"):
        load_function_tools_from_path(write(tmp_path / "empty.py", "x = 1\n"))
    with pytest.raises(UserCodeError, match=r"multi_turn.function_tool_path=.*no such file"):
        load_function_tools_from_path(str(tmp_path / "nowhere.py"))
