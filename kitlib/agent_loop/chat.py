"""From chat messages to token ids: prompts, and the turns that are added behind what the model wrote.

verl 0.9.1: utils/tokenizer/continuous_token.py, ContinuousTokenBuilder. The tokens the model wrote are never decoded
and encoded again, because another split of the same text would be other tokens, with other log-probs, than those that
were sampled. Only what comes behind them is rendered: the difference between a conversation with and without the tool
messages.

    prompt                        the model        added here                                   the model
    <|im_start|>user\\n12*59=?...   ...<|im_end|>    \\n<|im_start|>tool\\n708<|im_end|>\\n...     ####708<|im_end|>

Differs from verl: the rest of the model's turn (here the line break) is read off the chat template itself instead of
from a builder per model family, and every text is rendered once (the n sessions of a prompt share it). Left out:
images, and templates that want to see the tool call in front of its answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kitlib.agent_loop.errors import AgentLoopError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]

# Stands in for the conversation so far. It has a reasoning part because templates that add an empty one to the last
# turn would otherwise change the text of this turn as soon as a tool message follows.
_BEFORE_TOOLS = [{"role": "user", "content": ""}, {"role": "assistant", "content": "", "reasoning_content": "."}]


class ChatTokens:
    """Renders with the chat template of a tokenizer; `tools` are the schemas that the template may show to the model.

    The lists it returns are shared between sessions and must not be changed.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: Sequence[dict[str, Any]] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        cache_size: int = 4096,
    ) -> None:
        self.tokenizer = tokenizer
        self.tools: list[Any] | None = list(tools) or None
        self.template_kwargs = dict(template_kwargs or {})
        self._cached_prompt = lru_cache(maxsize=cache_size)(self._render_prompt)
        self._cached_tool_turn = lru_cache(maxsize=cache_size)(self._render_tool_turn)
        self._before_tools: list[int] | None = None

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation up to the place where the assistant speaks."""
        return self._cached_prompt(_as_json(messages))

    def tool_turn(self, messages: Sequence[Message], last_id: int) -> list[int]:
        """Token ids to append to a model turn that ended with token `last_id`: its end, the messages, the next opening.

        If the model ended its turn itself, only what the template writes behind the end-of-turn token is added.
        """
        turn_end, tool_ids = self._cached_tool_turn(_as_json(messages))
        closed = turn_end and last_id == turn_end[0]
        return turn_end[1:] + tool_ids if closed else turn_end + tool_ids

    def _render_prompt(self, messages: str) -> list[int]:
        return self._render(json.loads(messages), add_generation_prompt=True)

    def _render_tool_turn(self, messages: str) -> tuple[list[int], list[int]]:
        if self._before_tools is None:
            self._before_tools = self._render(_BEFORE_TOOLS, add_generation_prompt=False)
        before = self._before_tools
        whole = self._render([*_BEFORE_TOOLS, *json.loads(messages)], add_generation_prompt=True)
        if whole[: len(before)] != before:
            raise AgentLoopError(
                "the chat template of the tokenizer rewrites the turns before a tool message, so a tool turn cannot be "
                "appended to what the model wrote; give the model a template whose earlier text never changes"
            )
        return self._turn_end(before), whole[len(before) :]

    def _turn_end(self, before: list[int]) -> list[int]:
        """What the template writes from the end-of-turn token on; empty if it ends turns with something else."""
        eos = self.tokenizer.eos_token_id
        if eos not in before:
            return []
        return before[len(before) - 1 - before[::-1].index(eos) :]

    def _render(self, messages: list[Message], add_generation_prompt: bool) -> list[int]:
        return self.tokenizer.apply_chat_template(  # type: ignore[return-value]
            messages,
            tools=self.tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            return_dict=False,
            **self.template_kwargs,
        )


def _as_json(messages: Sequence[Message]) -> str:
    try:
        return json.dumps(list(messages))
    except TypeError as error:
        raise AgentLoopError(f"chat messages must be plain text: {error} in {messages!r}") from error
