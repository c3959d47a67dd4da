"""The critic: values where they belong, the same update however the batch is cut, learned returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from kitlib.algos import compute_value_loss
from kitlib.config import load_config
from kitlib.transfer_queue import jagged, padded
from kitlib.workers.critic import CriticWorker
from kitlib.workers.errors import WorkerError
from kitlib.workers.padding import response_from_nested
from tests.workers.conftest import VOCAB_SIZE, make_batch, tiny_model, with_settings
from tests.workers.test_actor import assert_same_weights

MakeCritic = Callable[..., CriticWorker]


def value_model(seed: int = 0) -> Any:
    from transformers import Qwen3Config, Qwen3ForTokenClassification

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "head_dim": 8, "num_labels": 1, "classifier_dropout": 0.0}
    return Qwen3ForTokenClassification(Qwen3Config(vocab_size=VOCAB_SIZE, **sizes, **more))


@pytest.fixture
def make_critic() -> Iterator[MakeCritic]:
    """Critics that are closed after the test: make_critic("optim.lr=0.1", model=...)."""
    workers = []

    def make(*overrides: str, model: Any = None) -> CriticWorker:
        config = load_config([f"critic.{override}" for override in ("optim.lr=0.01", *overrides)])
        workers.append(CriticWorker(config, value_model() if model is None else model))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def critic_batch(num_rows: int = 8) -> TensorDict:
    data = make_batch(num_rows)
    generator = torch.Generator().manual_seed(3)
    for name in ("values", "returns"):
        data[name] = jagged([torch.randn(len(row), generator=generator) for row in data["responses"].unbind()])
    return data.exclude("old_log_probs", "ref_log_prob", "advantages")


def test_a_value_is_read_before_its_token(make_critic: MakeCritic) -> None:
    data, model = critic_batch(), value_model()
    input_ids, prompt_len = data["input_ids"][3][None], len(data["prompts"][3])
    with torch.no_grad():
        expected = model(input_ids=input_ids).logits[0, :, 0]
        shorter = model(input_ids=input_ids[:, :prompt_len]).logits[0, -1, 0]
    output = make_critic(model=model).compute_values(with_settings(data))
    assert list(output.keys()) == ["values"]
    response = response_from_nested(output["values"], data["response_mask"])[3]
    torch.testing.assert_close(response, expected[prompt_len - 1 : -1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(response[0], shorter, rtol=1e-4, atol=1e-5)  # knows the prompt and nothing else


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_update_does_not_depend_on_micro_batches(make_critic: MakeCritic, mode: str) -> None:
    data = with_settings(critic_batch())
    whole = make_critic(f"loss_agg_mode={mode}")
    metrics = whole.update_critic(data)
    for cut in (("ppo_micro_batch_size_per_gpu=3",), ("use_dynamic_bsz=true", "ppo_max_token_len_per_gpu=40")):
        pieces = make_critic(f"loss_agg_mode={mode}", *cut)
        assert pieces.update_critic(data) == pytest.approx(metrics, rel=1e-4, abs=1e-6)
        assert_same_weights(pieces.engine.full_state_dict(), whole.engine.full_state_dict())


def test_padding_rows_change_nothing(make_critic: MakeCritic) -> None:
    data = critic_batch(num_rows=6)
    columns = {}
    for name in data.keys():
        length = {"prompts": 127, "input_ids": 128, "position_ids": 128}.get(name, 1)
        filler = torch.arange(length) if name == "position_ids" else torch.zeros(length, dtype=data[name].dtype)
        columns[name] = jagged([*data[name].unbind(), filler, filler])
    plain, with_pads = make_critic(), make_critic()
    assert with_pads.update_critic(with_settings(TensorDict(columns, batch_size=[8]))) == pytest.approx(
        plain.update_critic(with_settings(data)), rel=1e-4
    )
    assert_same_weights(with_pads.engine.full_state_dict(), plain.engine.full_state_dict())


def test_two_steps_equal_a_loop_in_plain_torch(make_critic: MakeCritic) -> None:
    data = critic_batch(num_rows=4)
    worker = make_critic("optim.weight_decay=0.1", "optim.clip_grad=0.5", "cliprange_value=0.2")
    metrics = worker.update_critic(with_settings(data, mini_batch_size=2, global_batch_size=2))

    model = value_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    norms, losses = [], []
    for rows in ([0, 1], [2, 3]):
        vpreds = [
            model(input_ids=data["input_ids"][i][None]).logits[0, len(data["prompts"][i]) - 1 : -1, 0] for i in rows
        ]
        returns, values, mask = (
            padded(jagged([data[n][i] for i in rows])) for n in ("returns", "values", "response_mask")
        )
        loss, _ = compute_value_loss(
            torch.nn.utils.rnn.pad_sequence(vpreds, batch_first=True), returns, values, mask, 0.2
        )
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        losses.append(loss.item())
        optimizer.step()
    assert metrics["critic/grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-4)
    assert metrics["critic/vf_loss"] == pytest.approx(sum(losses) / 2, rel=1e-4)
    assert_same_weights(worker.engine.full_state_dict(), dict(model.state_dict()))


def test_metrics_have_verls_names_and_values_approach_returns(make_critic: MakeCritic) -> None:
    data = critic_batch()
    worker = make_critic("cliprange_value=100.0")
    metrics = [worker.update_critic(with_settings(data)) for _ in range(30)]
    assert sorted(metrics[0]) == [
        f"critic/{name}" for name in ("grad_norm", "lr", "vf_clipfrac", "vf_loss", "vpred_mean")
    ]
    assert metrics[0]["critic/lr"] == 0.01
    assert metrics[-1]["critic/vf_loss"] < 0.5 * metrics[0]["critic/vf_loss"]


def test_a_saved_critic_goes_on_as_if_nothing_had_happened(make_critic: MakeCritic, tmp_path: Path) -> None:
    data = with_settings(critic_batch())
    first = make_critic()
    first.update_critic(data)
    first.save_checkpoint(tmp_path)
    again = make_critic(model=value_model(seed=1))
    again.load_checkpoint(tmp_path)
    assert again.update_critic(data) == first.update_critic(data)


def test_a_language_model_is_no_critic(make_critic: MakeCritic) -> None:
    with pytest.raises(WorkerError, match="Qwen3ForCausalLM has no head of width 1: load it with load_value_model"):
        make_critic(model=tiny_model())


def test_batches_that_make_no_mini_batch_name_the_critics_setting(make_critic: MakeCritic) -> None:
    with pytest.raises(WorkerError, match=r"critic\.ppo_mini_batch_size"):
        make_critic().update_critic(with_settings(critic_batch(6), mini_batch_size=4))
