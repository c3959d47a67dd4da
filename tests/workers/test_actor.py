"""The actor: same update however the batch is cut, settings obeyed, mistakes named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.algos import compute_policy_loss_vanilla
from kitlib.transfer_queue import jagged, padded
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.errors import WorkerError
from kitlib.workers.padding import response_from_nested
from tests.workers.conftest import make_batch, tiny_model, with_settings

MakeWorker = Callable[..., ActorRolloutRefWorker]
KL_AND_ENTROPY = ("actor.use_kl_loss=true", "actor.kl_loss_coef=0.1", "actor.entropy_coeff=0.01")


def weights_after(worker: ActorRolloutRefWorker, data: TensorDict) -> dict[str, Tensor]:
    worker.update_actor(data)
    return worker.state_dict_for_rollout()


def assert_same_weights(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Equal to half a percent of a step of lr 0.01: AdamW's first step is lr * sign(g), so that rounding of gradients
    near
    zero shows. That gradients have the same size is seen in actor/grad_norm."""
    for name in left:
        torch.testing.assert_close(
            left[name], right[name], rtol=1e-4, atol=5e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_log_probs_belong_to_the_next_token_and_prompts_stay_zero(make_worker: MakeWorker) -> None:
    data, model = make_batch(), tiny_model()
    input_ids = data["input_ids"][3][None]
    with torch.no_grad():
        expected = model(input_ids=input_ids).logits[0, :-1].log_softmax(-1).gather(1, input_ids[0, 1:, None])[:, 0]
    output = make_worker(model=model).compute_log_prob(with_settings(data, calculate_entropy=True))
    assert sorted(output.keys()) == ["entropy", "log_probs"]
    row, prompt_len = output["log_probs"][3], len(data["prompts"][3])
    torch.testing.assert_close(row[prompt_len - 1 : -1], expected[prompt_len - 1 :], rtol=1e-4, atol=1e-5)
    assert not row[: prompt_len - 1].any()
    assert row[-1] == 0
    response = response_from_nested(output["log_probs"], data["response_mask"])
    torch.testing.assert_close(response[3], expected[prompt_len - 1 :], rtol=1e-4, atol=1e-5)


def test_entropy_only_if_asked_for(make_worker: MakeWorker) -> None:
    assert list(make_worker().compute_log_prob(with_settings(make_batch())).keys()) == ["log_probs"]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_update_does_not_depend_on_micro_batches(make_worker: MakeWorker, mode: str) -> None:
    data = with_settings(make_batch(), calculate_entropy=True)
    common = (f"actor.loss_agg_mode={mode}", "actor.optim.lr=0.01", *KL_AND_ENTROPY)
    whole = make_worker(*common)
    metrics = whole.update_actor(data)
    for cut in (
        ("actor.ppo_micro_batch_size_per_gpu=3",),
        ("actor.use_dynamic_bsz=true", "actor.ppo_max_token_len_per_gpu=40"),
    ):
        pieces = make_worker(*common, *cut)
        assert pieces.update_actor(data) == pytest.approx(metrics, rel=1e-4, abs=1e-6)
        assert_same_weights(pieces.state_dict_for_rollout(), whole.state_dict_for_rollout())


def test_padding_rows_change_nothing(make_worker: MakeWorker) -> None:
    data = make_batch(num_rows=6)
    pad = {"responses": 1, "response_mask": 1, "loss_mask": 1, "advantages": 1, "old_log_probs": 1, "ref_log_prob": 1}
    columns = {}
    for name in data.keys():
        length = pad.get(name, 127 if name == "prompts" else 128)
        filler = torch.arange(length) if name == "position_ids" else torch.zeros(length, dtype=data[name].dtype)
        columns[name] = jagged([*data[name].unbind(), filler, filler])
    padded_data = TensorDict(columns, batch_size=[8])
    plain, with_pads = make_worker("actor.optim.lr=0.01"), make_worker("actor.optim.lr=0.01")
    assert with_pads.update_actor(with_settings(padded_data)) == pytest.approx(
        plain.update_actor(with_settings(data)), rel=1e-4
    )
    assert_same_weights(with_pads.state_dict_for_rollout(), plain.state_dict_for_rollout())


def test_two_steps_equal_a_loop_in_plain_torch(make_worker: MakeWorker) -> None:
    data = make_batch(num_rows=4)
    worker = make_worker("actor.optim.lr=0.01", "actor.optim.weight_decay=0.1", "actor.optim.clip_grad=0.5")
    metrics = worker.update_actor(with_settings(data, mini_batch_size=2, global_batch_size=2))

    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    norms = []
    for rows in ([0, 1], [2, 3]):
        log_prob = [
            model(input_ids=data["input_ids"][i][None])
            .logits[0]
            .log_softmax(-1)[len(data["prompts"][i]) - 1 : -1]
            .gather(1, data["responses"][i][:, None])[:, 0]
            for i in rows
        ]
        columns = [padded(jagged([data[n][i] for i in rows])) for n in ("old_log_probs", "advantages", "response_mask")]
        old_log_prob, advantages, mask = columns
        log_prob = torch.nn.utils.rnn.pad_sequence(log_prob, batch_first=True)
        loss, _ = compute_policy_loss_vanilla(old_log_prob, log_prob, advantages, mask)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    assert metrics["actor/grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-4)
    assert_same_weights(worker.state_dict_for_rollout(), dict(model.state_dict()))


def test_metrics_have_verls_names(make_worker: MakeWorker) -> None:
    worker = make_worker("actor.optim.lr=0.5", "actor.optim.lr_warmup_steps=2", *KL_AND_ENTROPY)
    metrics = worker.update_actor(with_settings(make_batch(), calculate_entropy=True))
    names = "pg_loss pg_clipfrac ppo_kl pg_clipfrac_lower entropy_loss kl_loss kl_coef loss grad_norm lr"
    assert sorted(metrics) == sorted(f"actor/{name}" for name in names.split())
    assert metrics["actor/lr"] == 0.25  # of the next update: the schedule has stepped once
    expected = metrics["actor/pg_loss"] - 0.01 * metrics["actor/entropy_loss"] + 0.1 * metrics["actor/kl_loss"]
    assert metrics["actor/loss"] == pytest.approx(expected, rel=1e-5)


def test_schedule_steps_once_a_call(make_worker: MakeWorker) -> None:
    worker = make_worker("actor.optim.lr=1.0e-3", "actor.optim.lr_warmup_steps=10")
    data = with_settings(make_batch(num_rows=4), mini_batch_size=2, global_batch_size=2, epochs=3)
    assert worker.update_actor(data)["actor/lr"] == pytest.approx(1e-4)
    assert worker.update_actor(data)["actor/lr"] == pytest.approx(2e-4)


def test_shuffle_follows_the_seed(make_worker: MakeWorker) -> None:
    settings = {"mini_batch_size": 2, "global_batch_size": 2, "dataloader_kwargs": {"shuffle": True}}
    after = {
        name: weights_after(make_worker("actor.optim.lr=0.01"), with_settings(make_batch(), seed=seed, **settings))
        for name, seed in (("a", 1), ("again", 1), ("b", 2))
    }
    weight = "model.norm.weight"
    assert torch.equal(after["a"][weight], after["again"][weight])
    assert not torch.equal(after["a"][weight], after["b"][weight])


def test_learning_raises_the_probability_of_good_tokens(make_worker: MakeWorker) -> None:
    data = make_batch()
    data["advantages"] = jagged([torch.ones(len(row)) for row in data["advantages"].unbind()])
    worker = make_worker("actor.optim.lr=0.01")
    before = worker.compute_log_prob(with_settings(data))["log_probs"]
    data["old_log_probs"] = response_from_nested(before, data["response_mask"])
    metrics = worker.update_actor(with_settings(data))
    assert metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-6)  # the first update is on-policy
    after = response_from_nested(worker.compute_log_prob(with_settings(data))["log_probs"], data["response_mask"])
    mask = padded(data["response_mask"]).bool()
    assert padded(after)[mask].mean() > padded(data["old_log_probs"])[mask].mean() + 0.1


def test_bad_batches_are_named(make_worker: MakeWorker) -> None:
    worker = make_worker()
    data = make_batch(num_rows=6)
    with pytest.raises(WorkerError, match="6 rows on each of 1 rank.*mini-batches of 4.*balance_batch"):
        worker.update_actor(with_settings(data, mini_batch_size=4))
    with pytest.raises(WorkerError, match="lacks old_log_probs"):
        worker.update_actor(with_settings(data.exclude("old_log_probs")))
    with pytest.raises(WorkerError, match="needs the setting 'mini_batch_size'"):
        worker.update_actor(data)
    dynamic = make_worker("actor.use_dynamic_bsz=true", "actor.ppo_max_token_len_per_gpu=4")
    with pytest.raises(WorkerError, match="does not fit into a micro-batch of 4: raise .*ppo_max_token_len_per_gpu"):
        dynamic.update_actor(with_settings(data))


def test_drawn_rows_bring_all_their_columns(make_worker: MakeWorker) -> None:
    data, drawn = make_batch(4), [2, 2, 0, 3]
    columns = {name: jagged([data[name][row] for row in drawn]) for name in data.keys()}
    expected, worker = make_worker("actor.optim.lr=0.01"), make_worker("actor.optim.lr=0.01")
    metrics = expected.update_actor(with_settings(TensorDict(columns, batch_size=[4])))
    assert worker.update_actor(with_settings(data, rows_to_train=drawn)) == metrics
    assert_same_weights(worker.state_dict_for_rollout(), expected.state_dict_for_rollout())


def test_rows_drawn_by_reward_are_refused_on_several_ranks(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker()
    monkeypatch.setattr(worker.engine, "dp_size", 2)
    with pytest.raises(WorkerError, match="use_pf_ppo=true draws rows of the whole batch, and each of 2 ranks"):
        worker.update_actor(with_settings(make_batch(4), rows_to_train=[0, 0, 1, 3]))
