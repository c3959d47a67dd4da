"""The engine: scores equal to transformers', any architecture, weights in and out, process groups, schedules."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from kitlib.workers.engine import FSDPEngine
from kitlib.workers.engine.optim import build_lr_scheduler, build_optimizer
from kitlib.workers.errors import WorkerError
from kitlib.workers.rows import Rows
from tests.workers.conftest import VOCAB_SIZE, make_batch, make_config, tiny_model

CPU = torch.device("cpu")


def engine_of(model: Any, **kwargs: Any) -> FSDPEngine:
    return FSDPEngine(model, make_config().actor_rollout_ref.actor.optim, CPU, **kwargs)


def expected_scores(model: Any, rows: Rows, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Row by row, without padding, hooks or FSDP: log-probs and entropies of all response tokens, one behind the
    other."""
    log_probs, entropies = [], []
    for i in range(len(rows)):
        prompt_len, seq_len = int(rows.prompt_lens[i]), int(rows.seq_lens[i])
        input_ids = rows.sequence["input_ids"][i : i + 1, :seq_len]
        with torch.no_grad():
            dist_log = (model(input_ids=input_ids).logits[0] / temperature).log_softmax(-1)
        dist_log = dist_log[prompt_len - 1 : seq_len - 1]  # [R, vocab]
        log_probs.append(dist_log.gather(1, input_ids[0, prompt_len:, None])[:, 0])
        entropies.append(-(dist_log.exp() * dist_log).sum(-1))
    return torch.cat(log_probs), torch.cat(entropies)


def other_architectures() -> list[Any]:
    from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}
    gpt2 = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "eos_token_id": 1}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0}
    return [
        pytest.param(
            lambda: LlamaForCausalLM(LlamaConfig(**sizes, **more, tie_word_embeddings=False)), id="llama-untied"
        ),
        pytest.param(
            lambda: Gemma2ForCausalLM(Gemma2Config(**sizes, **more, final_logit_softcapping=1.0, pad_token_id=0)),
            id="gemma2-softcap",
        ),
        pytest.param(lambda: GPT2LMHeadModel(GPT2Config(**gpt2, **dropout)), id="gpt2-absolute-positions"),
        pytest.param(tiny_model, id="qwen3-tied"),
    ]


@pytest.mark.parametrize("make_model", other_architectures())
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_equal_unpadded_transformers(make_model: Any, temperature: float) -> None:
    torch.manual_seed(0)
    model = make_model().eval()
    rows = Rows.from_tensordict(make_batch(), (), CPU)
    log_probs, entropy = expected_scores(model, rows, temperature)
    engine = engine_of(model)
    try:
        scores = engine.infer(rows, rows.response_grid(), temperature, with_entropy=True)
        torch.testing.assert_close(scores.log_probs, log_probs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(scores.entropy, entropy, rtol=1e-4, atol=1e-5)
        # The hook is off outside of a scoring call: the model still gives logits for every position.
        assert engine.model(input_ids=rows.sequence["input_ids"]).logits.shape[:2] == rows.sequence["input_ids"].shape
    finally:
        engine.close()


def test_gradient_checkpointing_gives_the_same_gradient() -> None:
    rows = Rows.from_tensordict(make_batch(), (), CPU)
    norms = []
    for checkpointing in (False, True):
        engine = engine_of(tiny_model(), gradient_checkpointing=checkpointing)
        scores = engine.forward(rows, rows.response_grid(), 1.0, with_entropy=False)
        engine.backward(scores.log_probs.sum(), is_last_micro_batch=True)
        norms.append(engine.optimizer_step())
        engine.close()
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_weights_come_out_as_they_went_in_and_are_copies(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = tiny_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    engine = engine_of(model)
    try:
        rows = Rows.from_tensordict(make_batch(), (), CPU)
        engine.infer(rows, rows.response_grid(), 1.0, with_entropy=False)
        after = engine.full_state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], before[name]) for name in before)
        after["model.norm.weight"].zero_()
        assert torch.equal(engine.full_state_dict()["model.norm.weight"], before["model.norm.weight"])

        engine.save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())
        num_bytes = 4 * sum(parameter.numel() for parameter in loaded.parameters())
        assert (tmp_path / "model.safetensors").stat().st_size < num_bytes + 5_000  # a tied head is not saved twice
    finally:
        engine.close()


def test_process_group_lives_as_long_as_the_last_engine() -> None:
    assert not dist.is_initialized()
    first, second = engine_of(tiny_model()), engine_of(tiny_model())
    first.close()
    first.close()
    assert dist.is_initialized()
    second.close()
    assert not dist.is_initialized()
    engine_of(tiny_model()).close()
    assert not dist.is_initialized()


def test_a_group_of_the_launcher_is_used_and_left_alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        engine_of(tiny_model()).close()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    engine = engine_of(tiny_model())
    try:
        before = engine.full_state_dict()
        rows = Rows.from_tensordict(make_batch(), (), CPU)
        scores = engine.forward(rows, rows.response_grid(), 1.0, with_entropy=False)
        engine.backward(scores.log_probs.sum() * float("nan"), is_last_micro_batch=True)
        with pytest.raises(WorkerError, match="gradient norm is nan: .*advantages.*optim.lr"):
            engine.optimizer_step()
        assert all(torch.equal(value, before[name]) for name, value in engine.full_state_dict().items())
        assert all(parameter.grad is None for parameter in engine.model.parameters())
    finally:
        engine.close()


def schedule(num_steps: int, **optim: Any) -> list[float]:
    parameter = torch.nn.Parameter(torch.zeros(1))
    defaults = {"lr": 1.0, "lr_warmup_steps": 0, "lr_warmup_steps_ratio": 0.0, "total_training_steps": -1}
    config = SimpleNamespace(**{**defaults, "min_lr_ratio": 0.0, "num_cycles": 0.5, **optim})
    scheduler = build_lr_scheduler(torch.optim.SGD([parameter], lr=1.0), config)
    rates = []
    for _ in range(num_steps):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def test_schedules_by_hand() -> None:
    assert schedule(3, lr_scheduler_type="constant") == [1.0, 1.0, 1.0]
    assert schedule(4, lr_scheduler_type="constant", lr_warmup_steps=2) == [0.0, 0.5, 1.0, 1.0]
    ratio = {"lr_warmup_steps_ratio": 0.5, "total_training_steps": 4, "lr_scheduler_type": "constant"}
    assert schedule(4, **ratio) == [0.0, 0.5, 1.0, 1.0]
    cosine = schedule(5, lr_scheduler_type="cosine", total_training_steps=4, min_lr_ratio=0.2)
    assert cosine == pytest.approx([1.0, 0.8828, 0.6, 0.3172, 0.2], abs=1e-4)


def test_wrong_optimizer_settings_are_named() -> None:
    with pytest.raises(WorkerError, match="lr_scheduler_type='linear'"):
        schedule(1, lr_scheduler_type="linear")
    with pytest.raises(WorkerError, match="total_training_steps=-1"):
        schedule(1, lr_scheduler_type="cosine")
    with pytest.raises(WorkerError, match="optim.optimizer='SGD'"):
        build_optimizer([], SimpleNamespace(optimizer="SGD"))
