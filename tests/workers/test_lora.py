"""LoRA: only the adapter learns, the reference is the model without it, servers and files get plain weights."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kitlib.config import ConfigError, load_config, require_supported
from kitlib.transfer_queue import padded
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.errors import CheckpointError, WorkerError
from tests.workers.conftest import make_batch, make_config, run_two_ranks, tiny_model, with_settings
from tests.workers.test_two_ranks import take

MakeWorker = Callable[..., ActorRolloutRefWorker]
LORA = ("model.lora_rank=4", "actor.optim.lr=0.01")
HAS_PEFT = importlib.util.find_spec("peft") is not None
needs_peft = pytest.mark.skipif(not HAS_PEFT, reason="peft is not installed: pip install 'kitlib[lora]'")


def log_probs(worker: ActorRolloutRefWorker, reference: bool = False) -> Tensor:
    data = with_settings(make_batch())
    return padded((worker.compute_ref_log_prob if reference else worker.compute_log_prob)(data)["log_probs"])


def plain_log_probs(make_worker: MakeWorker, weights: dict[str, Tensor] | None = None) -> Tensor:
    model = tiny_model()
    if weights is not None:
        model.load_state_dict(weights)
    return log_probs(make_worker(model=model))


def test_without_peft_it_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for setting in ("lora_rank=4", "lora_adapter_path=/somewhere"):
        with pytest.raises(ConfigError, match=r"pip install 'kitlib\[lora\]'"):
            require_supported(load_config([f"actor_rollout_ref.model.{setting}"]))


@needs_peft
def test_a_fresh_adapter_changes_nothing_and_the_plain_model_is_the_reference(make_worker: MakeWorker) -> None:
    worker = make_worker(*LORA)
    before = plain_log_probs(make_worker)
    assert torch.equal(log_probs(worker), before) and torch.equal(log_probs(worker, reference=True), before)
    for _ in range(3):
        worker.update_actor(with_settings(make_batch()))
    assert (log_probs(worker) - before).abs().max() > 0.01
    assert torch.equal(log_probs(worker, reference=True), before)


@needs_peft
def test_only_the_adapter_learns_also_after_the_reference_was_asked(make_worker: MakeWorker) -> None:
    worker = make_worker(*LORA)
    log_probs(worker, reference=True)  # the first pass through the model of all: FSDP2 remembers what it sees there
    before = {name: value.detach().clone() for name, value in worker.engine.model.named_parameters()}
    for _ in range(2):  # the first moves B alone: the gradient of A is 0 while B is
        worker.update_actor(with_settings(make_batch()))
    moved = {
        name
        for name, value in worker.engine.model.named_parameters()
        if not torch.equal(value.detach().full_tensor(), before[name].full_tensor())
    }
    assert moved == {name for name in before if ".lora_" in name}


@needs_peft
def test_servers_get_plain_weights_that_say_the_same(make_worker: MakeWorker) -> None:
    worker = make_worker(*LORA)
    for _ in range(3):
        worker.update_actor(with_settings(make_batch()))
    weights = worker.state_dict_for_rollout()
    assert weights.keys() == tiny_model().state_dict().keys()
    torch.testing.assert_close(plain_log_probs(make_worker, weights), log_probs(worker), rtol=1e-4, atol=1e-5)


@needs_peft
def test_the_saved_model_is_plain(make_worker: MakeWorker, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    worker = make_worker(*LORA)
    worker.update_actor(with_settings(make_batch()))
    worker.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(log_probs(make_worker(model=loaded)), log_probs(worker), rtol=1e-4, atol=1e-5)


@needs_peft
def test_a_checkpoint_goes_on_and_leaves_an_adapter_for_peft(make_worker: MakeWorker, tmp_path: Path) -> None:
    from peft import PeftModel

    worker, later = make_worker(*LORA), make_worker(*LORA)
    worker.update_actor(with_settings(make_batch()))
    worker.save_checkpoint(tmp_path)
    later.load_checkpoint(tmp_path)
    assert torch.equal(log_probs(later), log_probs(worker))
    worker.update_actor(with_settings(make_batch())), later.update_actor(with_settings(make_batch()))
    assert torch.equal(log_probs(later), log_probs(worker)), "the optimizer goes on, too"

    begun = make_worker("actor.optim.lr=0.01", f"model.lora_adapter_path={tmp_path / 'lora_adapter'}")
    begun.load_checkpoint(tmp_path)
    ids = make_batch()["input_ids"][0][None]
    merged = tiny_model()
    merged.load_state_dict(begun.state_dict_for_rollout())
    by_peft = PeftModel.from_pretrained(tiny_model(), str(tmp_path / "lora_adapter"))
    torch.testing.assert_close(by_peft(ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-5)


@needs_peft
def test_an_adapter_to_begin_with_is_trained_on(make_worker: MakeWorker, tmp_path: Path) -> None:
    worker = make_worker(*LORA)
    worker.update_actor(with_settings(make_batch()))
    worker.save_checkpoint(tmp_path)
    settings = tmp_path / "lora_adapter" / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"inference_mode": True}))  # as peft saves it
    path = f"model.lora_adapter_path={tmp_path / 'lora_adapter'}"
    begun = make_worker("actor.optim.lr=0.01", path)
    assert torch.equal(log_probs(begun), log_probs(worker))
    assert torch.equal(log_probs(begun, reference=True), plain_log_probs(make_worker))
    begun.update_actor(with_settings(make_batch()))
    assert not torch.equal(log_probs(begun), log_probs(worker))
    with pytest.raises(CheckpointError, match="holds no LoRA adapter of peft"):
        make_worker(f"model.lora_adapter_path={tmp_path}")
    with pytest.raises((CheckpointError, RuntimeError)):
        make_worker(path, model=tiny_model(num_hidden_layers=1))


@needs_peft
def test_targets_may_be_named_and_must_be_linear(make_worker: MakeWorker) -> None:
    worker = make_worker("model.lora_rank=2", "model.target_modules=[q_proj,v_proj]")
    trained = {name for name, value in worker.engine.model.named_parameters() if value.requires_grad}
    assert trained and all(".q_proj." in name or ".v_proj." in name for name in trained)
    with pytest.raises(WorkerError, match="a Embedding: only linear layers"):
        make_worker("model.lora_rank=2", "model.target_modules=[embed_tokens]")


def run(folder: str, rows: slice) -> dict[str, Any]:
    worker = ActorRolloutRefWorker(make_config(*LORA, "actor.use_kl_loss=true"), tiny_model())
    data = make_batch()
    mine = with_settings(take(data, list(range(len(data)))[rows]), mini_batch_size=8, global_batch_size=8)
    before = padded(worker.compute_ref_log_prob(mine)["log_probs"])
    for _ in range(2):
        worker.update_actor(mine)
    worker.save_checkpoint(Path(folder))
    result = {"weights": worker.state_dict_for_rollout(), "before": before}
    result["after"] = padded(worker.compute_ref_log_prob(mine)["log_probs"])
    worker.close()
    return result


def rank_main(rank: int, folder: str) -> None:
    torch.manual_seed(0)  # A is random: the ranks must draw the same
    torch.save(run(f"{folder}/checkpoint", slice(rank * 4, rank * 4 + 4)), f"{folder}/rank{rank}.pt")


@needs_peft
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_ranks_train_the_adapter_of_one(tmp_path: Path) -> None:
    run_two_ranks(rank_main, tmp_path)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    torch.manual_seed(0)
    whole = run(str(tmp_path / "one"), slice(0, 8))
    for rank in ranks:
        assert torch.equal(rank["before"], rank["after"])
        gaps = [(rank["weights"][name] - value).abs().max() for name, value in whole["weights"].items()]
        assert max(gaps) < 5e-5
