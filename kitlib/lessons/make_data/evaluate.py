"""Accuracy of a checkpoint by real multi-turn generation, the calculator answering each call.

The yardstick of data/README.md and of the tests of the shipped checkpoints: plain `generate` of transformers, one call
a turn over all conversations that still run. It shares no code with the pipeline, so it can check it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kitlib.lessons.make_data.tasks import Message, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAX_NEW_TOKENS = 16
_CALL = re.compile(r"<tool_call>(\d+)([*+])(\d+)</tool_call>")


@dataclass
class Conversation:
    """What was said about one problem."""

    problem: Problem
    text: str  # everything up to the last assistant turn, as the model read it
    last_turn: str = ""  # of the assistant, without <|im_end|>
    num_turns: int = 0  # assistant turns

    @property
    def is_correct(self) -> bool:
        return self.last_turn == f"####{self.problem.answer}"


def accuracy(conversations: Sequence[Conversation]) -> float:
    """Share of correct conversations, from 0 to 1."""
    return sum(conversation.is_correct for conversation in conversations) / len(conversations)


def mean_turns(conversations: Sequence[Conversation]) -> float:
    return sum(conversation.num_turns for conversation in conversations) / len(conversations)


@torch.no_grad()
def converse(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    max_turns: int,
    sample: bool,
    seed: int = 0,
) -> list[Conversation]:
    """One conversation a problem, greedily or at temperature 1, each until a turn without a call or for max_turns."""
    torch.manual_seed(seed)
    conversations = [
        Conversation(problem, _render(tokenizer, {"role": "user", "content": problem.question})) for problem in problems
    ]
    running = conversations
    for _ in range(max_turns):
        turns = _generate(model, tokenizer, [conversation.text for conversation in running], sample)
        for conversation, turn in zip(running, turns, strict=True):
            conversation.last_turn = turn
            conversation.num_turns += 1
        running = [conversation for conversation in running if _answer_call(conversation, tokenizer)]
        if not running:
            break
    return conversations


def _answer_call(conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Append the calculator's result if the last turn was a call; False if it was none."""
    call = _CALL.fullmatch(conversation.last_turn)
    if call is None:
        return False
    a, operator, b = int(call[1]), call[2], int(call[3])
    result = {"role": "tool", "content": str(a * b if operator == "*" else a + b)}
    conversation.text += f"{conversation.last_turn}<|im_end|>\n{_render(tokenizer, result)}"
    return True


def _render(tokenizer: PreTrainedTokenizerBase, message: Message) -> str:
    """One message and the words that open the assistant's next turn."""
    return str(tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False))


def _generate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], sample: bool) -> list[str]:
    """One assistant turn for each text, up to and without <|im_end|>."""
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, **sampling)  # type: ignore[operator]
    new = output[:, inputs["input_ids"].shape[1] :]
    return [text.split("<|im_end|>")[0] for text in tokenizer.batch_decode(new)]
