"""Token ids of prompts and tool turns: what is appended must be what the template writes for the whole conversation."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kitlib.agent_loop import AgentLoopError
from kitlib.agent_loop.chat import ChatTokens
from tests.agent_loop.fakes import TOKENIZER, ids, text

QUESTION = [{"role": "user", "content": "12*59=?"}]
CALL = "<tool_call>12*59</tool_call>"
TOOL = [{"role": "tool", "content": "708"}]

# Shows an empty thought in the last turn only, as Qwen3 does.
HIDES_OLD_THOUGHTS = """\
{%- for m in messages -%}
{%- if m.role == 'assistant' and (loop.last or m.reasoning_content) -%}
{{ '<|im_start|>assistant\\n(' + (m.reasoning_content or '') + ')' + m.content + '<|im_end|>\\n' }}
{%- else -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

COUNTS_TURNS = "{{ messages | length }}" + HIDES_OLD_THOUGHTS


class Counting:
    """A tokenizer that counts how often it renders."""

    def __init__(self) -> None:
        self.eos_token_id = TOKENIZER.eos_token_id
        self.num_renders = 0

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> list[int]:
        self.num_renders += 1
        return TOKENIZER.apply_chat_template(*args, **kwargs)


def with_template(template: str) -> Any:
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.chat_template = template
    return tokenizer


def test_prompt_plus_turns_equals_the_whole_conversation() -> None:
    chat = ChatTokens(TOKENIZER)
    model_turn = ids(CALL + "<|im_end|>")
    mine = chat.prompt(QUESTION) + model_turn + chat.tool_turn(TOOL, model_turn[-1])
    whole = [*QUESTION, {"role": "assistant", "content": CALL}, *TOOL]
    assert mine == TOKENIZER.apply_chat_template(whole, add_generation_prompt=True, return_dict=False)


def test_a_turn_that_the_model_left_open_is_closed() -> None:
    chat = ChatTokens(TOKENIZER)
    open_turn, closed_turn = chat.tool_turn(TOOL, ids("9")[0]), chat.tool_turn(TOOL, TOKENIZER.eos_token_id)
    assert text(open_turn) == "<|im_end|>\n<|im_start|>tool\n708<|im_end|>\n<|im_start|>assistant\n"
    assert open_turn[1:] == closed_turn


def test_each_text_is_rendered_once() -> None:
    tokenizer = Counting()
    chat = ChatTokens(tokenizer)  # type: ignore[arg-type]
    for _ in range(8):
        chat.prompt([dict(message) for message in QUESTION])
        chat.tool_turn(TOOL, 3)
    assert tokenizer.num_renders == 3  # the prompt, the conversation without and with the tool message
    chat.tool_turn([{"role": "tool", "content": "709"}], 3)
    assert tokenizer.num_renders == 4


def test_a_template_that_hides_old_thoughts_still_gives_the_tool_turn() -> None:
    chat = ChatTokens(with_template(HIDES_OLD_THOUGHTS))
    assert (
        text(chat.tool_turn(TOOL, TOKENIZER.eos_token_id))
        == "\n<|im_start|>tool\n708<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_rewrites_the_past_is_refused() -> None:
    with pytest.raises(AgentLoopError, match="rewrites the turns before a tool message"):
        ChatTokens(with_template(COUNTS_TURNS)).tool_turn(TOOL, 3)


def test_a_template_without_the_end_token_gets_nothing_inserted() -> None:
    template = "{% for m in messages %}{{ m.role + m.content + '\\n' }}{% endfor %}"
    assert text(ChatTokens(with_template(template)).tool_turn(TOOL, 5)) == "tool708\n"


def test_the_template_sees_tools_and_keyword_arguments() -> None:
    template = "{{ tools[0]['function']['name'] if tools else 'none' }}{{ extra }}"
    schema = {"type": "function", "function": {"name": "abc"}}
    chat = ChatTokens(with_template(template), tools=[schema], template_kwargs={"extra": "42"})
    assert text(chat.prompt(QUESTION)) == "abc42"
    assert text(ChatTokens(with_template(template), template_kwargs={"extra": "1"}).prompt(QUESTION)) == "none1"


def test_messages_must_be_text() -> None:
    with pytest.raises(AgentLoopError, match=r"plain text.*object"):
        ChatTokens(TOKENIZER).prompt([{"role": "user", "content": object()}])
