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


@dataclass(frozen=True)
class Accuracy:
    """Shares of 1 over the problems that were asked."""

    correct: float
    called_tool: float
    mean_turns: float


def calculator(call: re.Match[str]) -> str:
    a, operator, b = int(call[1]), call[2], int(call[3])
    return str(a * b if operator == "*" else a + b)


@torch.no_grad()
def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    max_turns: int,
    sample: bool,
    seed: int = 0,
) -> Accuracy:
    """Ask every problem once, greedily or at temperature 1. Correct: the last turn is `####` and the right number."""
    torch.manual_seed(seed)
    texts = [_render(tokenizer, [{"role": "user", "content": problem.question}]) for problem in problems]
    last = [""] * len(problems)
    num_turns = [0] * len(problems)
    running = list(range(len(problems)))
    for _ in range(max_turns):
        answers = _generate(model, tokenizer, [texts[i] for i in running], sample)
        still = []
        for i, answer in zip(running, answers, strict=True):
            last[i], num_turns[i] = answer, num_turns[i] + 1
            if call := _CALL.fullmatch(answer):
                result = [{"role": "tool", "content": calculator(call)}]
                texts[i] += f"{answer}<|im_end|>\n{_render(tokenizer, result)}"
                still.append(i)
        running = still
        if not running:
            break
    num = len(problems)
    return Accuracy(
        correct=sum(text == f"####{problem.answer}" for text, problem in zip(last, problems, strict=True)) / num,
        called_tool=sum("<tool_call>" in text for text in texts) / num,
        mean_turns=sum(num_turns) / num,
    )


def _render(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> str:
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def _generate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], sample: bool) -> list[str]:
    """One assistant turn for each text, as text up to and without <|im_end|>."""
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, **sampling)  # type: ignore[operator]
    new = output[:, inputs["input_ids"].shape[1] :]
    return [text.split("<|im_end|>")[0] for text in tokenizer.batch_decode(new)]
