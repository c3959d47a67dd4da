"""Tiny random models of several architectures, and slow but plain references to compare the engine with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 40
_ROPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,  # wide enough that a token depends on all that came before it
    "max_position_embeddings": 256,
}
_GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.3}
ARCHITECTURES: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_ROPE, head_dim=8)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_ROPE)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_ROPE)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**_GPT2)),
}


def make_model(architecture: str = "qwen3", attention: str = "sdpa", seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = ARCHITECTURES[architecture]().eval()
    model.set_attn_implementation(attention)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    return model


@pytest.fixture(scope="session")
def qwen3() -> PreTrainedModel:
    """Shared: a test that loads weights makes its own."""
    return make_model()


def greedy(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int, eos: int | None = None) -> list[int]:
    """One full forward a token, no cache."""
    tokens = list(prompt)
    with torch.inference_mode():
        while len(tokens) < len(prompt) + num_tokens:
            tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
            if tokens[-1] == eos:
                break
    return tokens[len(prompt) :]


def log_probs_of(
    model: PreTrainedModel, prompt: Sequence[int], output: Sequence[int], temperature: float
) -> torch.Tensor:
    """Log-probabilities of `output` after `prompt`, from one full forward. float32 [len(output)]"""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1].float()
    return (logits / temperature).log_softmax(-1)[torch.arange(len(output)), torch.tensor(list(output))]


def random_prompts(num_prompts: int, seed: int = 0, longest: int = 20) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (num_prompts,), generator=generator).tolist()
    return [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in lengths]
