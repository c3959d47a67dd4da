"""Weights fit as a whole, or nothing changes."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from kitlib.rollout import RolloutError
from kitlib.rollout.weights import copy_weights
from tests.rollout.conftest import make_model


def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_all_weights_are_copied_and_not_shared() -> None:
    source, target = make_model(seed=1), make_model(seed=2)
    copy_weights(target, source.state_dict(), 1)
    assert same(source, target)
    with torch.no_grad():
        source.lm_head.weight.add_(1)
    assert not same(source, target)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda weights: weights.pop("lm_head.weight"), "1 are missing, among them lm_head.weight"),
        (lambda weights: weights.update(extra=torch.zeros(1)), "1 are unknown to it, among them extra"),
        (lambda weights: weights.update({"lm_head.weight": torch.zeros(3, 2)}), r"lm_head.weight has shape \(3, 2\)"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(spoil, message: str) -> None:
    target = make_model(seed=2)
    weights = dict(make_model(seed=1).state_dict())
    spoil(weights)
    with pytest.raises(RolloutError, match=f"version 7 do not fit the rollout model Qwen3ForCausalLM: {message}"):
        copy_weights(target, weights, 7)
    assert same(target, make_model(seed=2))


def test_a_tied_weight_may_come_once() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    config = Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    source, target = Qwen3ForCausalLM(config), Qwen3ForCausalLM(config)
    weights = dict(source.state_dict())
    del weights["lm_head.weight"]
    copy_weights(target.to(torch.bfloat16), weights, 1)
    assert torch.equal(target.lm_head.weight, source.model.embed_tokens.weight.to(torch.bfloat16))
