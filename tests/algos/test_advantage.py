"""GRPO, the dispatch by signature, and sessions with several outputs, against verl's numbers."""

from __future__ import annotations

import pytest
import torch

from kitlib.algos import (
    AlgoError,
    compute_advantage,
    compute_advantage_for_multi_trajectories,
    compute_grpo_outcome_advantage,
    get_adv_estimator_fn,
    register_adv_est,
)
from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY, final_outputs
from tests.golden.cases import Case, assert_close, cases


@pytest.mark.parametrize("case", cases("adv/grpo/", "adv/grpo_vectorized/"))
def test_grpo_matches_verl(case: Case) -> None:
    name = case.name.split("/")[1]
    advantages, returns = get_adv_estimator_fn(name)(**case.tensors(), **case.args)
    assert_close(advantages, case.expected("advantages"), "advantages")
    assert_close(returns, case.expected("returns"), "returns")


@pytest.mark.parametrize("case", cases("multi/grpo/"))
def test_several_outputs_of_a_session_match_verl(case: Case) -> None:
    data = {**case.tensors(), "uid": case.args["uid"]}
    settings = {name: value for name, value in case.args.items() if name != "uid"}
    advantages, returns = compute_advantage_for_multi_trajectories(data, **settings)
    assert_close(advantages, case.expected("advantages"), "advantages")
    assert_close(returns, case.expected("returns"), "returns")


def test_equal_rewards_give_exactly_zero() -> None:
    rewards = torch.zeros(9, 4)
    rewards[:, 1] = torch.tensor([0.1] * 3 + [1 / 3] * 6)
    advantages, _ = compute_grpo_outcome_advantage(rewards, torch.ones(9, 4), ["a"] * 3 + ["b"] * 6)
    assert torch.equal(advantages, torch.zeros(9, 4))


def test_permuting_rows_permutes_advantages_and_padding_rows_change_nothing() -> None:
    torch.manual_seed(0)
    rewards, mask, index = torch.randn(12, 5), torch.ones(12, 5), [f"u{i % 3}" for i in range(12)]
    advantages, _ = compute_grpo_outcome_advantage(rewards, mask, index)
    order = torch.randperm(12)
    permuted, _ = compute_grpo_outcome_advantage(rewards[order], mask, [index[i] for i in order])
    torch.testing.assert_close(permuted, advantages[order])
    with_pads, _ = compute_grpo_outcome_advantage(
        torch.cat([rewards, torch.zeros(2, 5)]), torch.cat([mask, torch.zeros(2, 5)]), [*index, "pad", "pad"]
    )
    torch.testing.assert_close(with_pads[:12], advantages)
    assert not with_pads[12:].any()


def test_scaling_rewards_leaves_normalised_advantages_alone() -> None:
    torch.manual_seed(1)
    rewards, mask = torch.randn(8, 3), torch.ones(8, 3)
    plain, _ = compute_grpo_outcome_advantage(rewards, mask, [0] * 8, epsilon=0.0)
    scaled, _ = compute_grpo_outcome_advantage(5 * rewards + 2, mask, [0] * 8, epsilon=0.0)
    torch.testing.assert_close(plain, scaled)


def test_a_nan_reward_stays_in_its_group() -> None:
    rewards = torch.tensor([[float("nan")], [1.0], [0.0], [1.0]])
    advantages, _ = compute_grpo_outcome_advantage(rewards, torch.ones(4, 1), ["a", "a", "b", "b"])
    assert advantages[:2].isnan().all()
    assert advantages[2:].isfinite().all()


def test_last_output_of_each_session() -> None:
    assert final_outputs(["a_0_1", "a_0_0", "b_0_0", "a_1_0", "a_0_10"]) == ([4, 2, 3], [0, 0, 1, 2, 0])
    with pytest.raises(AlgoError, match="row 1 has the key 'a0'"):
        final_outputs(["a_0_0", "a0"])


def test_masked_last_output_silences_its_session() -> None:
    data = {
        "token_level_rewards": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]),
        "response_mask": torch.tensor([[1, 1], [0, 0], [1, 1]]),
        "uid": ["a", "a", "a"],
    }
    advantages, _ = compute_advantage_for_multi_trajectories(data, ["a_0_0", "a_0_1", "a_1_0"], "grpo")
    assert not advantages[:2].any()
    assert advantages[2].all()


def test_dispatch_names_the_missing_field() -> None:
    data = {"token_level_rewards": torch.zeros(2, 2), "response_mask": torch.ones(2, 2)}
    with pytest.raises(AlgoError, match="adv_estimator=grpo needs the field 'uid'.*token_level_rewards, response_mask"):
        compute_advantage(data, "grpo")
    with pytest.raises(AlgoError, match="adv_estimator='gropo' is unknown; known are .*grpo"):
        compute_advantage(data, "gropo")
    with pytest.raises(AlgoError, match="groups of 1 rows, but the batch has 2"):
        compute_advantage({**data, "uid": ["a"]}, "grpo")


def test_own_estimator_gets_the_columns_it_names() -> None:
    def own(token_level_rewards, response_mask, rollout_log_probs, gamma, config):
        return rollout_log_probs * gamma, config["scale"] * token_level_rewards

    try:
        register_adv_est("own")(own)
        data = {
            "token_level_rewards": torch.ones(1, 2),
            "response_mask": torch.ones(1, 2),
            "rollout_log_probs": torch.ones(1, 2),
        }
        advantages, returns = compute_advantage(data, "own", gamma=0.5, config={"scale": 3})
        assert advantages.tolist() == [[0.5, 0.5]]
        assert returns.tolist() == [[3.0, 3.0]]
        with pytest.raises(AlgoError, match="'own' is already"):
            register_adv_est("own")(compute_grpo_outcome_advantage)
    finally:
        ADV_ESTIMATOR_REGISTRY.pop("own", None)
