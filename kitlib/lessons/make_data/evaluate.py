"""Accuracy of a checkpoint by real multi-turn generation, the calculator answering each call.

This is the yardstick of data/README.md and of the tests of the shipped checkpoints. It is plain `generate` of transformers,
one call a turn over all conversations that still run; it shares no code with the pipeline that it checks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kitlib.lessons.make_data.tasks import Problem

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
    """Ask every problem once, greedily or at temperature 1. Correct means: the last turn is `####` and the right number."""
    torch.manual_seed(seed)
    texts = [_prompt(tokenizer, problem.question) for problem in problems]
    last = [""] * len(problems)
    num_turns = [0] * len(problems)
    running = list(range(len(problems)))
    for _ in range(max_turns):
        answers = _generate(model, tokenizer, [texts[i] for i in running], sample)
        still = []
        for i, answer in zip(running, answers):
            last[i], num_turns[i] = answer, num_turns[i] + 1
            if call := _CALL.fullmatch(answer):
                texts[i] += f"{answer}<|im_end|>\n<|im_start|>tool\n{calculator(call)}<|im_end|>\n<|im_start|>assistant\n"
                still.append(i)
        running = still
        if not running:
            break
    num = len(problems)
    return Accuracy(
        correct=sum(text == f"####{problem.answer}" for text, problem in zip(last, problems)) / num,
        called_tool=sum("<tool_call>" in text for text in texts) / num,
        mean_turns=sum(num_turns) / num,
    )


def _prompt(tokenizer: PreTrainedTokenizerBase, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


def _generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], sample: bool
) -> list[str]:
    """One assistant turn for each text, as text up to and without <|im_end|>."""
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    output = model.generate(
        **inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=sample, temperature=1.0, top_k=0, top_p=1.0
    )
    new = output[:, inputs["input_ids"].shape[1] :]
    return [text.split("<|im_end|>")[0] for text in tokenizer.batch_decode(new)]
