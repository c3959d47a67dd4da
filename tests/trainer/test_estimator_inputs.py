"""Estimators that want more than rewards and masks: each gets its fields in the pipeline, or the run is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kitlib.algos import register_adv_est
from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY
from kitlib.config import ConfigError, load_config, require_supported
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.errors import BadRewardError
from kitlib.transfer_queue import KVBatchMeta
from tests.trainer.test_stages import sampled

Start = Callable[..., PPOTrainer]

TWO_PARTS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right, brief = float(solution_str.endswith("####" + str(ground_truth))), 1.0 / len(solution_str)
    return {"score": right + brief, "right": right, "brief": brief}
"""


def scored(trainer: PPOTrainer) -> KVBatchMeta:
    return trainer.compute_old_log_prob(trainer.balance_batch(sampled(trainer)))


def test_remax_subtracts_the_reward_of_the_greedy_answer(start: Start) -> None:
    trainer = start(algorithm__adv_estimator="remax", actor_rollout_ref__rollout__temperature=1.0)
    batch = trainer.compute_advantage(scored(trainer))
    assert len(batch) == 16  # the greedy sessions leave no row
    data = trainer.pull(batch, "reward_baselines", "rm_scores", "response_mask", "advantages", "uid")
    by_uid: dict[str, set[float]] = {}
    rows = zip(*(data[n].unbind() for n in ("rm_scores", "response_mask", "advantages")), strict=True)
    for uid, baseline, (scores, mask, advantages) in zip(
        data.get("uid").tolist(), data["reward_baselines"].tolist(), rows, strict=True
    ):
        by_uid.setdefault(uid, set()).add(baseline)
        own = advantages[mask.bool()]
        torch.testing.assert_close(own, ((scores * mask).sum() - baseline).expand_as(own), atol=1e-5, rtol=0)
    assert all(len(baselines) == 1 for baselines in by_uid.values())


@pytest.mark.parametrize("estimator", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_the_token_baselines_get_sums_of_squared_probabilities(start: Start, estimator: str) -> None:
    trainer = start(algorithm__adv_estimator=estimator, algorithm__rollout_correction__rollout_is="token")
    batch = trainer.compute_advantage(scored(trainer))
    data = trainer.pull(batch, "sum_pi_squared", "old_log_probs", "advantages", "responses")
    squares, chosen = data["sum_pi_squared"].values(), data["old_log_probs"].values().exp()
    assert torch.equal(data["sum_pi_squared"].offsets(), data["responses"].offsets())
    assert (squares <= 1 + 1e-5).all()
    assert (squares >= chosen.square() - 1e-5).all()  # the chosen word is one of those summed over
    assert torch.isfinite(data["advantages"].values()).all()
    trainer.update_actor(batch)


def test_gdpo_normalises_each_part_of_the_reward(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "two_parts.py"
    path.write_text(TWO_PARTS)
    trainer = start(
        algorithm__adv_estimator="gdpo",
        algorithm__gdpo_reward_keys=["right", "brief"],
        algorithm__gdpo_reward_weights=[1.0, 0.5],
        reward__custom_reward_function__path=str(path),
    )
    batch = scored(trainer)
    first = trainer.pull(trainer.compute_advantage(batch), "advantages")["advantages"].values()
    assert first.abs().max() > 0
    trainer.config.update("algorithm.gdpo_reward_weights", [0.0, 1.0], "test")
    second = trainer.pull(trainer.compute_advantage(batch), "advantages")["advantages"].values()
    assert not torch.allclose(first, second)
    trainer.config.update("algorithm.gdpo_reward_keys", ["right", "short"], "test")
    with pytest.raises(
        BadRewardError, match=r"names 'short', which the reward function did not return for .* of 16 rows"
    ):
        trainer.compute_advantage(batch)


@pytest.fixture
def curious_estimator() -> Iterator[str]:
    @register_adv_est("curious")
    def curious(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, entropy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return entropy * response_mask, token_level_rewards

    yield "curious"
    del ADV_ESTIMATOR_REGISTRY["curious"]


def test_an_estimator_of_ones_own_may_ask_for_any_field(start: Start, curious_estimator: str) -> None:
    trainer = start(algorithm__adv_estimator=curious_estimator)
    data = trainer.pull(trainer.compute_advantage(scored(trainer)), "advantages", "entropy", "response_mask")
    expected = data["entropy"].values() * data["response_mask"].values()
    assert torch.equal(data["advantages"].values(), expected)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.adv_estimator=gae", "critic.enable=false"], "gae needs the field values, .* critic.enable"),
        (
            ["algorithm.adv_estimator=optimal_token_baseline", "algorithm.rollout_correction.bypass_mode=true"],
            "optimal_token_baseline needs the field sum_pi_squared, .*bypass_mode",
        ),
        (
            ["algorithm.adv_estimator=remax", "reward.reward_model.enable=true", "reward.reward_model.model_path=x"],
            "remax needs the field reward_baselines, .*reward_model",
        ),
    ],
)
def test_what_cannot_be_fed_is_refused_with_the_field_and_the_way_out(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_supported(load_config(overrides))


def test_an_estimator_that_asks_for_what_no_stage_writes_is_refused(curious_estimator: str) -> None:
    register_adv_est("dreaming")(lambda token_level_rewards, dreams: (dreams, dreams))
    try:
        with pytest.raises(ConfigError, match="needs the field dreams, .*no stage writes a field of that name"):
            require_supported(load_config(["algorithm.adv_estimator=dreaming"]))
    finally:
        del ADV_ESTIMATOR_REGISTRY["dreaming"]


def test_pf_ppo_draws_whole_rows_by_reward_and_the_same_for_actor_and_critic(start: Start) -> None:
    trainer = start(algorithm__adv_estimator="gae", algorithm__use_pf_ppo=True)
    full = sampled(trainer)
    batch = trainer.balance_batch(full.select_keys(full.keys[:13]))
    rows = [torch.zeros_like(row) for row in trainer.pull(batch, "rm_scores")["rm_scores"].unbind()]
    rows[2][-1], rows[5][-1] = 1.0, -2.0  # |R|^2 is 1 and 4: these two are drawn, the second four times as often
    trainer.push(batch, rm_scores=torch.nested.as_nested_tensor(rows, layout=torch.jagged))
    drawn = trainer.rows_to_train(batch)
    assert drawn[13:] == [13, 14, 15]  # padding rows stay
    assert set(drawn[:13]) <= {2, 5}
    batch = trainer.compute_advantage(trainer.compute_values(trainer.compute_old_log_prob(batch)))
    trainer.update_actor(trainer.update_critic(batch))
    assert batch.extra_info["rows_to_train"] == drawn
    assert torch.isfinite(torch.tensor([trainer.metrics["actor/pg_loss"], trainer.metrics["critic/vf_loss"]])).all()
    trainer.global_steps += 1
    assert drawn != trainer.rows_to_train(batch)


def test_pf_ppo_clears_the_rows_that_were_not_drawn(start: Start) -> None:
    trainer = start(algorithm__use_pf_ppo=True)
    trainer.begin_step()
    trainer.clear(trainer.step())
    assert trainer.tq.kv_list("train")["train"] == {}
