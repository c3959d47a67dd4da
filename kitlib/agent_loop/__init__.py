"""The agent loop: sessions that talk to the LLM server and to tools, and the worker that writes them to the queue.

    manager.py       AgentLoopManagerTQ: threads, chunks, close
    worker.py        AgentLoopWorkerTQ: prompts, sessions, rewards, statuses, puts
    ledger.py        TaskLedger: who runs, who failed
    base.py          AgentLoopBase and the registry of loops
    single_turn.py   one question, one answer
    tool_agent.py    the state machine of turns and tools
    chat.py          messages to token ids
    tool_parser.py   token ids to tool calls
    tools.py         function tools and tools with a state
    calculator.py    the shipped tool
    output.py        what a session gives back
    trajectory.py    outputs to keys, fields and tags

Read tool_agent.py for what a session does and worker.py for what the trainer gets of it.
"""

from __future__ import annotations

from kitlib.agent_loop.base import AgentLoopBase, get_agent_loop, register
from kitlib.agent_loop.errors import AgentLoopError, BadOutputError
from kitlib.agent_loop.ledger import TaskLedger, TaskRecord
from kitlib.agent_loop.manager import AgentLoopManagerTQ
from kitlib.agent_loop.output import AgentLoopMetrics, AgentLoopOutput
from kitlib.agent_loop.single_turn import SingleTurnAgentLoop
from kitlib.agent_loop.tool_agent import AgentData, AgentState, ToolAgentLoop
from kitlib.agent_loop.tool_parser import FunctionCall, ToolParser, register_tool_parser
from kitlib.agent_loop.tools import BaseTool, FunctionTool, ToolResponse, function_tool
from kitlib.agent_loop.worker import AgentLoopWorkerTQ

__all__ = [
    "AgentData",
    "AgentLoopBase",
    "AgentLoopError",
    "AgentLoopManagerTQ",
    "AgentLoopMetrics",
    "AgentLoopOutput",
    "AgentLoopWorkerTQ",
    "AgentState",
    "BadOutputError",
    "BaseTool",
    "FunctionCall",
    "FunctionTool",
    "SingleTurnAgentLoop",
    "TaskLedger",
    "TaskRecord",
    "ToolAgentLoop",
    "ToolParser",
    "ToolResponse",
    "function_tool",
    "get_agent_loop",
    "register",
    "register_tool_parser",
]
