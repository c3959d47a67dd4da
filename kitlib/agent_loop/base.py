"""AgentLoopBase: one session of one prompt, as a coroutine; and the registry that finds a loop by its `agent_name`.

verl 0.9.1: experimental/agent_loop/agent_loop.py, AgentLoopBase and register. Write your own loop by subclassing:

    @register("my_agent")
    class MyAgentLoop(AgentLoopBase):
        async def run(self, sampling_params, **row): ...

and name it in the dataset column `agent_name`, in rollout.agent.default_agent_loop, or in the file
rollout.agent.agent_loop_config_path (a YAML list of `{name, _target_, ...keyword arguments}`).

Differs from verl: one instance serves all sessions of a worker (verl builds one a session), so `run` keeps its state in
local variables; a prompt over rollout.prompt_length is treated as data.truncation says (verl cuts its left end with a
warning). Left out: images, tracing, hydra's instantiate.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

from kitlib.agent_loop.chat import ChatTokens, Message
from kitlib.agent_loop.errors import AgentLoopError
from kitlib.agent_loop.output import AgentLoopOutput
from kitlib.agent_loop.tools import Tool
from kitlib.rollout.protocol import TokenOutput
from kitlib.user_code import resolve_user_path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LLMClient(Protocol):
    """What a loop needs of the rollout: `LLMServerClient` is one."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput: ...


class AgentLoopBase(ABC):
    """Talks to the LLM server and to the world for one session, and returns what was said.

    Args:
        config: the whole configuration.
        server_client: generates tokens.
        tokenizer: of the policy; its chat template renders prompts and tool turns.
        tools: loaded once a worker; loops that use none ignore them.
    """

    uses_tools = False  # True: the chat template is given the tool schemas

    def __init__(
        self, config: Any, server_client: LLMClient, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool] = ()
    ) -> None:
        rollout = config.actor_rollout_ref.rollout
        self.config = config
        self.server_client = server_client
        self.tokenizer = tokenizer
        self.tools = {tool.name: tool for tool in tools}
        self.prompt_length: int = rollout.prompt_length
        self.response_length: int = rollout.response_length
        self.truncation: str = config.data.truncation
        self.chat = ChatTokens(
            tokenizer,
            tools=[tool.tool_schema for tool in tools] if self.uses_tools else (),
            template_kwargs=dict(config.data.apply_chat_template_kwargs),
        )

    @abstractmethod
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """One session.

        Args:
            sampling_params: temperature, top_p, top_k, repetition_penalty, logprobs.
            row: the dataset row of the prompt (`raw_prompt`, `extra_info`, ...) with `uid`, `session_id`,
                `global_steps`.

        Returns:
            One trajectory or several (say one for each time the context was cut); the last one is scored.
        """

    def render_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the prompt, at most rollout.prompt_length of them.

        Raises AgentLoopError if data.truncation is error.
        """
        prompt_ids, limit = self.chat.prompt(messages), self.prompt_length
        if len(prompt_ids) <= limit:
            return prompt_ids
        if self.truncation == "left":
            return prompt_ids[-limit:]
        if self.truncation == "right":
            return prompt_ids[:limit]
        if self.truncation == "middle":
            return prompt_ids[: limit // 2] + prompt_ids[limit // 2 - limit :]
        raise AgentLoopError(
            f"a prompt of {len(prompt_ids)} tokens does not fit into data.max_prompt_length={limit}: {messages!r}. "
            "Raise it, set data.filter_overlong_prompts=true to drop such rows, or data.truncation=left to cut them"
        )

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], max_tokens: int
    ) -> TokenOutput:
        """Ask the server for at most `max_tokens` more tokens. Turns with the same request_id go to the same server."""
        return await self.server_client.generate(
            request_id, prompt_ids=prompt_ids, sampling_params={**sampling_params, "max_tokens": max_tokens}
        )

    @staticmethod
    def new_request_id() -> str:
        return uuid4().hex


_REGISTRY: dict[str, Callable[..., AgentLoopBase]] = {}
_Loop = TypeVar("_Loop", bound=type[AgentLoopBase])


def register(agent_name: str) -> Callable[[_Loop], _Loop]:
    """Make a loop available as `agent_name`."""

    def decorate(loop_class: _Loop) -> _Loop:
        _REGISTRY[agent_name] = loop_class
        return loop_class

    return decorate


def get_agent_loop(agent_name: str) -> Callable[..., AgentLoopBase]:
    """The registered class, or the class with the keyword arguments of its config file.

    Raises AgentLoopError if unknown.
    """
    if agent_name not in _REGISTRY:
        raise AgentLoopError(
            f"no agent loop is called {agent_name!r} (registered: {', '.join(sorted(_REGISTRY))}). The name comes from "
            "the dataset column agent_name or actor_rollout_ref.rollout.agent.default_agent_loop; register yours "
            "with @kitlib.agent_loop.register or in actor_rollout_ref.rollout.agent.agent_loop_config_path"
        )
    return _REGISTRY[agent_name]


def register_from_file(path: str) -> None:
    """Register the loops of a YAML list: `name`, `_target_` (import path of the class) and its keyword arguments."""
    from omegaconf import OmegaConf

    key = "actor_rollout_ref.rollout.agent.agent_loop_config_path"
    entries: Any = OmegaConf.to_container(OmegaConf.load(resolve_user_path(path, key)), resolve=True)
    for entry in entries:
        arguments = dict(entry)
        try:
            agent_name, (module, _, class_name) = arguments.pop("name"), arguments.pop("_target_").rpartition(".")
            loop_class = getattr(importlib.import_module(module), class_name)
        except (KeyError, ImportError, AttributeError, ValueError) as error:
            raise AgentLoopError(f"{key}={path}: entry {entry!r} names no agent loop: {error!r}") from error
        _REGISTRY[agent_name] = partial(loop_class, **arguments)
