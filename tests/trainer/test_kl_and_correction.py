"""KL to the reference in loss and reward, and the correction of rollout log-probs, on the real parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kitlib.trainer.base import PPOTrainer
from kitlib.transfer_queue import KVBatchMeta
from tests.trainer.test_stages import fields_now, sampled

Start = Callable[..., PPOTrainer]


def scored(trainer: PPOTrainer) -> KVBatchMeta:
    batch = trainer.compute_old_log_prob(trainer.balance_batch(sampled(trainer)))
    return batch if trainer.ref_policy_wg is None else trainer.compute_ref_log_prob(batch)


def test_the_reference_starts_equal_to_the_policy_and_stays(start: Start) -> None:
    trainer = start(actor_rollout_ref__actor__use_kl_loss=True, actor_rollout_ref__actor__optim__lr=0.01)
    batch = scored(trainer)
    first = trainer.pull(batch, "old_log_probs", "ref_log_prob")
    assert torch.equal(first["old_log_probs"].values(), first["ref_log_prob"].values())
    trainer.update_actor(trainer.compute_advantage(batch))
    assert trainer.metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert trainer.metrics["actor/kl_coef"] == 0.001
    again = trainer.compute_ref_log_prob(trainer.compute_old_log_prob(batch))
    second = trainer.pull(again, "old_log_probs", "ref_log_prob")
    assert torch.equal(first["ref_log_prob"].values(), second["ref_log_prob"].values())
    assert not torch.equal(second["old_log_probs"].values(), second["ref_log_prob"].values())


def test_kl_in_the_reward_writes_the_rewards_it_used(start: Start) -> None:
    trainer = start(algorithm__use_kl_in_reward=True, algorithm__kl_ctrl__kl_coef=0.5)
    batch = scored(trainer)
    shifted = trainer.pull(batch, "ref_log_prob")["ref_log_prob"] - 1.0  # KL of one nat a token
    trainer.push(batch, ref_log_prob=shifted)
    batch = trainer.compute_advantage(batch)
    data = trainer.pull(batch, "token_level_rewards", "rm_scores", "response_mask")
    expected = data["rm_scores"].values() - 0.5 * data["response_mask"].values()
    torch.testing.assert_close(data["token_level_rewards"].values(), expected, atol=1e-5, rtol=0)
    assert trainer.metrics["actor/reward_kl_penalty"] == pytest.approx(1.0, abs=1e-4)
    trainer.end_step()
    metrics = trainer.compute_metrics(batch)
    assert metrics["critic/rewards/mean"] < metrics["critic/score/mean"]


def test_with_lora_the_actor_is_its_own_reference(start: Start) -> None:
    pytest.importorskip("peft", reason="peft is not installed: pip install 'kitlib[lora]'")
    lora = {"actor_rollout_ref__model__lora_rank": 4, "actor_rollout_ref__actor__optim__lr": 0.01}
    trainer = start(actor_rollout_ref__actor__use_kl_loss=True, **lora)
    assert trainer.ref_policy_wg is not None and trainer.ref_policy_wg.worker is trainer.actor_rollout_wg.worker
    batch = scored(trainer)
    first = trainer.pull(batch, "old_log_probs", "ref_log_prob")
    assert torch.equal(first["old_log_probs"].values(), first["ref_log_prob"].values())
    batch = trainer.update_actor(trainer.compute_advantage(batch))
    trainer.end_step()  # the servers take the merged weights
    again = trainer.compute_ref_log_prob(trainer.compute_old_log_prob(batch))
    second = trainer.pull(again, "old_log_probs", "ref_log_prob")
    assert torch.equal(first["ref_log_prob"].values(), second["ref_log_prob"].values())
    assert not torch.equal(second["old_log_probs"].values(), second["ref_log_prob"].values())


def test_without_a_kl_there_is_no_reference_model(start: Start) -> None:
    assert start().ref_policy_wg is None


def test_importance_weights_are_one_on_policy_and_reported(start: Start) -> None:
    trainer = start(algorithm__rollout_correction__rollout_is="token")
    batch = trainer.compute_advantage(scored(trainer))
    data = trainer.pull(batch, "rollout_is_weights", "response_mask")
    weights = data["rollout_is_weights"].values()[data["response_mask"].values().bool()]
    torch.testing.assert_close(weights, torch.ones_like(weights), atol=1e-4, rtol=0)
    assert trainer.metrics["rollout_corr/kl"] == pytest.approx(0.0, abs=1e-4)


def test_rejection_clears_tokens_whose_weights_have_moved(start: Start) -> None:
    trainer = start(
        algorithm__rollout_correction__rollout_rs="token_k1",
        algorithm__rollout_correction__rollout_rs_threshold="0.5_2.0",
    )
    batch = scored(trainer)
    data = trainer.pull(batch, "rollout_log_probs", "response_mask")
    rows = [row.clone() for row in data["rollout_log_probs"].unbind()]
    rows[0] -= 5.0  # the sampler thought these tokens far less likely than the trainer does
    trainer.push(batch, rollout_log_probs=torch.nested.as_nested_tensor(rows, layout=torch.jagged))
    mask = trainer.pull(trainer.compute_advantage(batch), "response_mask")["response_mask"].unbind()
    assert mask[0].sum() == 0
    assert torch.equal(mask[1], data["response_mask"].unbind()[1])
    assert "rollout_is_weights" not in fields_now(trainer)


@pytest.mark.parametrize("estimator", ["rloo", "reinforce_plus_plus", "opo", "gpg", "grpo_vectorized"])
def test_other_estimators_run_in_the_pipeline(start: Start, estimator: str) -> None:
    trainer = start(algorithm__adv_estimator=estimator)
    batch = trainer.compute_advantage(scored(trainer))
    assert torch.isfinite(trainer.pull(batch, "advantages")["advantages"].values()).all()
    trainer.update_actor(batch)
