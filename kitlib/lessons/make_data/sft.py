"""Supervised training of a tiny Qwen3 on the flawed demonstrations of a task, in float32 on one thread."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import torch

from kitlib.lessons.make_data.tasks import Message, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

BATCH_SIZE = 64
MICRO_BATCH_SIZE = 16
LEARNING_RATE = 3e-3
NUM_WARMUP_STEPS = 50
FINAL_LR_SHARE = 0.1
IGNORED = -100  # a label that the loss of transformers skips


def build_model(tokenizer: PreTrainedTokenizerFast, max_length: int = 512) -> PreTrainedModel:
    """Qwen3 with 2 layers of width 128 and tied embeddings: 303,872 parameters with 64 symbols, 1.2 MB in float32."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def encode(tokenizer: PreTrainedTokenizerFast, messages: list[Message]) -> tuple[list[int], list[int]]:
    """Token ids of a conversation and their labels: only what the assistant says, its <|im_end|> included, counts."""
    ids: list[int] = []
    labels: list[int] = []
    for message in messages:
        # The template is prefix consistent: a conversation is its messages rendered one by one.
        text = tokenizer.apply_chat_template([message], tokenize=False)
        new = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += new
        is_learnt = message["role"] == "assistant"
        # <|im_start|> role \n | content <|im_end|> | \n
        labels += [IGNORED] * 3 + (new[3:-1] if is_learnt else [IGNORED] * (len(new) - 4)) + [IGNORED]
    return ids, labels


def batches(task: Task, tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[list[dict[str, torch.Tensor]]]:
    """Fresh demonstrations, a batch a step, each cut into micro-batches of similar lengths (which saves padding).

    A micro-batch has input_ids, attention_mask and labels, each [MICRO_BATCH_SIZE, longest], right padded.
    """
    rng = random.Random(seed)
    for stage in chain.from_iterable([stage] * stage.num_steps for stage in task.stages):
        rows = [encode(tokenizer, task.draw_demonstration(stage, rng)) for _ in range(BATCH_SIZE)]
        rows.sort(key=lambda row: len(row[0]))
        yield [_micro_batch(rows[i : i + MICRO_BATCH_SIZE], tokenizer) for i in range(0, BATCH_SIZE, MICRO_BATCH_SIZE)]


def _micro_batch(
    rows: list[tuple[list[int], list[int]]], tokenizer: PreTrainedTokenizerFast
) -> dict[str, torch.Tensor]:
    longest = len(rows[-1][0])
    return {
        "input_ids": _padded([ids for ids, _ in rows], longest, tokenizer.pad_token_id),
        "attention_mask": _padded([[1] * len(ids) for ids, _ in rows], longest, 0),
        "labels": _padded([labels for _, labels in rows], longest, IGNORED),
    }


def _padded(rows: list[list[int]], length: int, padding: int) -> torch.Tensor:
    return torch.tensor([row + [padding] * (length - len(row)) for row in rows])


def train(
    task: Task, tokenizer: PreTrainedTokenizerFast, seed: int = 0, on_step: Callable[[float], None] = lambda loss: None
) -> PreTrainedModel:
    """A model after task.num_sft_steps of AdamW: linear warm-up, cosine to a tenth. Calls on_step(loss) each step."""
    from transformers import get_cosine_with_min_lr_schedule_with_warmup

    torch.manual_seed(seed)
    model = build_model(tokenizer).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, NUM_WARMUP_STEPS, task.num_sft_steps, min_lr_rate=FINAL_LR_SHARE
    )
    for batch in batches(task, tokenizer, seed):
        num_learnt = sum(int((micro["labels"] != IGNORED).sum()) for micro in batch)
        parts = [model(**micro, num_items_in_batch=num_learnt).loss for micro in batch]
        loss = torch.stack(parts).sum()  # of all learnt tokens of the batch, divided by their number
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        on_step(loss.item())
    return model.eval()
