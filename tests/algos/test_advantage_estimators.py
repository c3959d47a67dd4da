"""The other estimators against verl's numbers, and what each promises."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kitlib.algos import AlgoError, compute_advantage, compute_advantage_for_multi_trajectories, get_adv_estimator_fn
from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY
from tests.golden.cases import Case, all_cases, assert_close, cases

OTHERS = sorted({c.name.split("/")[1] for c in all_cases() if c.name.startswith("adv/")} - {"grpo", "grpo_vectorized"})
GROUP_WISE = ("grpo", "rloo", "rloo_vectorized", "opo", "gpg", "reinforce_plus_plus_baseline", "gdpo")


@pytest.mark.parametrize("case", cases(*(f"adv/{name}/" for name in OTHERS)))
def test_estimator_matches_verl(case: Case) -> None:
    name = case.name.split("/")[1]
    inputs = case.tensors()
    # verl takes some settings from `config`; here they are parameters, except for gdpo's names of rewards.
    args = {key.removeprefix("config."): value for key, value in case.args.items()}
    if name == "gdpo_two_rewards":
        parts = {key: inputs.pop(f"reward {key}") for key in args["gdpo_reward_keys"]}
        inputs.pop("valid response length")
        args, name = {"config": SimpleNamespace(**args), "data": parts}, "gdpo"
    advantages, returns = get_adv_estimator_fn(name)(**inputs, **args)
    assert_close(advantages, case.expected("advantages"), "advantages")
    assert_close(returns, case.expected("returns"), "returns")


@pytest.mark.parametrize("case", [param for param in cases("multi/") if "/grpo/" not in param.id])
def test_other_estimators_see_every_output(case: Case) -> None:
    data = {**case.tensors(), "uid": case.args["uid"]}
    settings = {name: value for name, value in case.args.items() if name != "uid"}
    if settings["adv_estimator"] == "reinforce_plus_plus":
        settings["gamma"] = 0.98  # verl took it from a config that the set does not record
    advantages, returns = compute_advantage_for_multi_trajectories(data, **settings)
    assert_close(advantages, case.expected("advantages"), "advantages")
    assert_close(returns, case.expected("returns"), "returns")


def batch() -> dict[str, object]:
    torch.manual_seed(0)
    mask = (torch.rand(12, 6) > 0.2).float()
    mask[:, 0] = 1
    shape = {"token_level_rewards": torch.randn(12, 6) * mask, "response_mask": mask, "values": torch.randn(12, 6)}
    more = {
        "old_log_probs": -torch.rand(12, 6),
        "sum_pi_squared": torch.rand(12, 6),
        "reward_baselines": torch.rand(12),
    }
    return {**shape, **more, "uid": [f"u{i // 4}" for i in range(12)]}


@pytest.mark.parametrize("name", sorted(ADV_ESTIMATOR_REGISTRY))
def test_permuting_rows_permutes_the_result(name: str) -> None:
    data = batch()
    order = torch.randperm(12).tolist()
    permuted = {k: v[order] if isinstance(v, torch.Tensor) else [v[i] for i in order] for k, v in data.items()}
    for plain, moved in zip(
        compute_advantage(data, name, 0.9, 0.8), compute_advantage(permuted, name, 0.9, 0.8), strict=True
    ):
        torch.testing.assert_close(plain[order], moved, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(ADV_ESTIMATOR_REGISTRY))
def test_padding_rows_change_nothing(name: str) -> None:
    data = batch()
    longer = {
        k: torch.cat([v, torch.zeros(2, *v.shape[1:])]) if isinstance(v, torch.Tensor) else [*v, "pad", "pad"]
        for k, v in data.items()
    }
    advantages, _ = compute_advantage(data, name, 0.9, 0.8)
    with_pads, _ = compute_advantage(longer, name, 0.9, 0.8)
    if name == "gpg":  # B / M counts rows, padding rows too, as in verl
        with_pads = with_pads * 12 / 14
    mask = data["response_mask"].bool()
    torch.testing.assert_close(with_pads[:12][mask], advantages[mask], rtol=1e-4, atol=1e-5)
    assert not (with_pads[12:] * longer["response_mask"][12:]).any()


@pytest.mark.parametrize("name", GROUP_WISE)
def test_equal_rewards_teach_nothing(name: str) -> None:
    data = batch()
    data["token_level_rewards"] = torch.zeros(12, 6)
    data["token_level_rewards"][:, 0] = 0.1
    advantages, _ = compute_advantage(data, name)
    assert advantages.abs().max() < 1e-6


def test_gae_by_hand() -> None:
    rewards, values = torch.tensor([[0.0, 5.0, 1.0]]), torch.tensor([[0.5, 9.0, 0.25]])
    mask = torch.tensor([[1, 0, 1]])  # the middle token is a tool's: its value and reward do not count
    _, returns = get_adv_estimator_fn("gae")(rewards, values, mask, gamma=0.9, lam=0.8)
    last = 1.0 - 0.25
    first = (0.0 + 0.9 * 0.25 - 0.5) + 0.9 * 0.8 * last
    torch.testing.assert_close(returns[0, [0, 2]], torch.tensor([first + 0.5, last + 0.25]))


def test_a_group_of_one_is_named_by_passk() -> None:
    with pytest.raises(AlgoError, match="grpo_passk compares rows of a group, but 'b' has one row"):
        get_adv_estimator_fn("grpo_passk")(torch.ones(3, 1), torch.ones(3, 1), ["a", "a", "b"])


def test_missing_inputs_are_named() -> None:
    data = batch()
    del data["sum_pi_squared"], data["reward_baselines"]
    with pytest.raises(AlgoError, match="optimal_token_baseline needs the field 'sum_pi_squared'"):
        compute_advantage(data, "optimal_token_baseline")
    with pytest.raises(AlgoError, match="remax needs the field 'reward_baselines'"):
        compute_advantage(data, "remax")
    with pytest.raises(AlgoError, match="gdpo_reward_keys names 'format'"):
        compute_advantage(data, "gdpo", config=SimpleNamespace(gdpo_reward_keys=["format"]))
