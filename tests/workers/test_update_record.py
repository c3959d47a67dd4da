"""What an update did to each token: the columns are what plain torch computes, and however a batch is cut, the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.algos import compute_policy_loss_vanilla
from kitlib.transfer_queue import padded
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.padding import response_from_nested
from tests.workers.conftest import make_batch, with_settings

MakeWorker = Callable[..., ActorRolloutRefWorker]


def recorded(worker: ActorRolloutRefWorker, data: TensorDict, **settings: object) -> TensorDict:
    output = worker.update_actor(with_settings(data, record_update=True, **settings))
    assert isinstance(output, TensorDict)
    return output


def test_columns_are_those_of_plain_torch(make_worker: MakeWorker) -> None:
    data = make_batch()
    worker = make_worker("actor.optim.lr=0.01", "actor.entropy_coeff=0.1", "actor.ppo_micro_batch_size_per_gpu=3")
    before = worker.compute_log_prob(with_settings(data))["log_probs"]
    mask = padded(data["response_mask"]).bool()
    log_prob = (padded(response_from_nested(before, data["response_mask"])) * mask).requires_grad_()
    old, advantages = padded(data["old_log_probs"]), padded(data["advantages"])
    loss, _ = compute_policy_loss_vanilla(old, log_prob, advantages, mask)
    loss.backward()
    output = recorded(worker, data)
    torch.testing.assert_close(padded(output["update_log_probs"]), log_prob.detach(), rtol=1e-4, atol=1e-5)
    assert log_prob.grad is not None
    expected = -log_prob.grad / log_prob.grad.abs().sum()
    share = padded(output["loss_share"])
    torch.testing.assert_close(share, expected, rtol=1e-3, atol=1e-6)
    ratio = (log_prob - old).exp()
    clipped = mask & torch.where(advantages > 0, ratio > 1.2, ratio < 0.8) & (advantages != 0)
    assert clipped.any() and not share[clipped].any(), "a clipped token has no share"
    assert (share[mask & ~clipped & (advantages != 0)] != 0).all()


def test_metrics_and_weights_are_those_of_an_update_that_is_not_recorded(make_worker: MakeWorker) -> None:
    plain, watched = make_worker("actor.optim.lr=0.01"), make_worker("actor.optim.lr=0.01")
    metrics = plain.update_actor(with_settings(make_batch()))
    assert recorded(watched, make_batch()).get_non_tensor("metrics") == metrics
    after = zip(plain.state_dict_for_rollout().values(), watched.state_dict_for_rollout().values(), strict=True)
    assert all(torch.equal(left, right) for left, right in after)


def test_shares_of_all_mini_batches_make_one(make_worker: MakeWorker) -> None:
    output = recorded(make_worker(), make_batch(), mini_batch_size=2, global_batch_size=2, epochs=2)
    assert padded(output["loss_share"]).abs().sum().item() == pytest.approx(1.0)
    seen = recorded(make_worker(), make_batch(), dataloader_kwargs={"shuffle": True})
    whole = recorded(make_worker(), make_batch())
    torch.testing.assert_close(padded(seen["loss_share"]), padded(whole["loss_share"]), rtol=1e-4, atol=1e-7)


def test_a_row_that_was_not_drawn_says_so(make_worker: MakeWorker) -> None:
    log_probs: Tensor = recorded(make_worker(), make_batch(4), rows_to_train=[0, 0, 1, 3])["update_log_probs"]
    assert [bool(row.isnan().any()) for row in log_probs.unbind()] == [False, False, True, False]


def test_advantages_of_zero_have_shares_of_zero(make_worker: MakeWorker) -> None:
    data = make_batch(4)
    data["advantages"] = data["advantages"] * 0
    assert not padded(recorded(make_worker(), data)["loss_share"]).any()
