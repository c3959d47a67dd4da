"""What each formula promises: which changes of the rewards its advantages do not see, that a loss does not care for the
order of rows or for padding rows, that gradients are those of the values, and that each names its source."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kitlib.algos import LossConfig, compute_advantage, compute_value_loss, kl_penalty
from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY
from kitlib.algos.policy_loss import POLICY_LOSS_REGISTRY

SAME, LINEAR = "the same", "as many times larger"
# Estimator -> what a reward k times as large does (values and baselines follow), and whether a constant added to every
# reward is seen. Both for norm_adv_by_std_in_grpo=true; GRPO_LIKE are linear without it.
PROMISES = {
    "gae": (SAME, True),
    "grpo": (SAME, False),
    "grpo_vectorized": (SAME, False),
    "grpo_passk": (SAME, False),
    "gdpo": (SAME, False),
    "reinforce_plus_plus": (SAME, False),
    "reinforce_plus_plus_baseline": (SAME, False),
    "rloo": (LINEAR, False),
    "rloo_vectorized": (LINEAR, False),
    "opo": (LINEAR, False),
    "gpg": (LINEAR, False),
    "remax": (LINEAR, False),
    "optimal_token_baseline": (LINEAR, True),
    "tir_optimal_token_baseline": (LINEAR, True),
}
GRPO_LIKE = ("grpo", "grpo_vectorized", "grpo_passk")


def advantages(name: str, scale: float = 1.0, shift: float = 0.0, with_std: bool = True) -> Tensor:
    """12 rows in 3 groups, one reward a row on its last token."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(12, 6, generator=generator) > 0.2).float()
    mask[:, 0] = 1
    last = (mask * torch.arange(1, 7)).argmax(dim=1)
    rewards = torch.zeros(12, 6)
    rewards[torch.arange(12), last] = torch.randn(12, generator=generator) * scale + shift
    data = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "values": torch.randn(12, 6, generator=generator) * scale,
        "reward_baselines": torch.rand(12, generator=generator) * scale + shift,
        "old_log_probs": -torch.rand(12, 6, generator=generator),
        "sum_pi_squared": torch.rand(12, 6, generator=generator),
        "uid": [f"u{i // 4}" for i in range(12)],
    }
    return compute_advantage(data, name, 1.0, 0.95, with_std)[0] * mask


def test_every_shipped_estimator_has_a_promise() -> None:
    assert set(PROMISES) <= set(ADV_ESTIMATOR_REGISTRY)
    shipped = {name for name, fn in ADV_ESTIMATOR_REGISTRY.items() if fn.__module__.startswith("kitlib.algos")}
    assert shipped == set(PROMISES)


@pytest.mark.parametrize("name", PROMISES)
def test_larger_rewards(name: str) -> None:
    scale, _ = PROMISES[name]
    plain, larger = advantages(name), advantages(name, scale=5.0)
    torch.testing.assert_close(larger, plain if scale == SAME else 5 * plain, rtol=1e-4, atol=1e-4)
    if name in GRPO_LIKE:
        by_mean = [advantages(name, scale, with_std=False) for scale in (1.0, 5.0)]
        torch.testing.assert_close(by_mean[1], 5 * by_mean[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PROMISES)
def test_a_constant_on_every_reward(name: str) -> None:
    _, is_seen = PROMISES[name]
    gap = (advantages(name, shift=3.0) - advantages(name)).abs().max().item()
    assert gap > 1e-2 if is_seen else gap < 1e-4


# ------------------------------------------------------------------------------------------------------- policy losses

POLICY_SETTINGS: dict[str, dict[str, Any]] = {
    "clip_cov": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 5.0},
    "kl_cov": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 1.0},
    "dro": {"dro_beta": 0.5},
    "bypass_mode": {"rollout_correction": {"rollout_is": None, "loss_type": "ppo_clip"}},
}
# Their ratio weighs a token and carries no gradient: the gradient is not that of the value, and stands in the golden
# numbers.
STOPPED = ("cispo", "gspo", "dppo_tv", "dppo_kl")
RANDOM = ("clip_cov",)  # draws the tokens that it clips
SHIPPED = sorted(name for name, fn in POLICY_LOSS_REGISTRY.items() if fn.__module__.startswith("kitlib.algos"))


def loss_inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    old, advantage, gap = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [1, 1, 1, 1, 0]]).bool()
    return {
        "old_log_prob": -old.abs(),
        "log_prob": -old.abs() + 0.4 * gap,
        "advantages": advantage,
        "response_mask": mask,
    }


def policy_loss(name: str, inputs: dict[str, Tensor], mode: str = "token-mean", **info: Any) -> Tensor:
    torch.manual_seed(0)
    config = LossConfig(policy_loss=POLICY_SETTINGS.get(name, {}), global_batch_info=info)
    return POLICY_LOSS_REGISTRY[name](**inputs, loss_agg_mode=mode, config=config)[0]


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in STOPPED])
def test_the_gradient_is_that_of_the_value(name: str) -> None:
    inputs = loss_inputs()
    log_prob = inputs.pop("log_prob").requires_grad_()
    assert torch.autograd.gradcheck(lambda x: policy_loss(name, {**inputs, "log_prob": x}), log_prob)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in RANDOM])
def test_the_order_of_rows_does_not_matter(name: str, mode: str) -> None:
    inputs = loss_inputs()
    turned = {column: values[[2, 0, 3, 1]] for column, values in inputs.items()}
    torch.testing.assert_close(policy_loss(name, turned, mode), policy_loss(name, inputs, mode))


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in RANDOM])
def test_padding_rows_do_not_matter(name: str) -> None:
    inputs = loss_inputs()
    info = {"batch_num_tokens": int(inputs["response_mask"].sum()), "global_batch_size": 4, "dp_size": 1}
    padded = {name: torch.cat([values, torch.zeros_like(values[:2])]) for name, values in inputs.items()}
    rows = 6 / 4 if name == "geo_mean" else 1.0  # a mean over the rows of the call, padding rows too, as in verl
    torch.testing.assert_close(rows * policy_loss(name, padded, **info), policy_loss(name, inputs, **info))


def test_value_loss_and_kl_have_the_gradients_of_their_values() -> None:
    generator = torch.Generator().manual_seed(1)
    x, values, returns = torch.randn(3, 3, 4, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0]] * 3)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: compute_value_loss(x, returns, values, mask, 0.5)[0], x)
    for name in ("kl", "abs", "mse", "low_var_kl"):
        assert torch.autograd.gradcheck(lambda x, name=name: kl_penalty(x, values, name), x)
        straight = torch.autograd.grad(kl_penalty(x, values, f"{name}+").sum(), x)[0]
        torch.testing.assert_close(straight, torch.autograd.grad(kl_penalty(x, values, "mse").sum(), x)[0])
        torch.testing.assert_close(kl_penalty(x, values, f"{name}+"), kl_penalty(x, values, name))


# -------------------------------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize("registry", [ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY], ids=["estimator", "loss"])
def test_every_formula_names_its_source_and_its_shapes(registry: dict[str, Callable[..., Any]]) -> None:
    shipped = {name: fn for name, fn in registry.items() if fn.__module__.startswith("kitlib.algos")}
    for name, fn in shipped.items():
        told = SimpleNamespace(own=fn.__doc__ or "", module=sys.modules[fn.__module__].__doc__ or "")
        has_paper = re.search("arXiv:[0-9]|JMLR", told.own + told.module)
        assert has_paper or name == "bypass_mode", f"{name}: no paper"  # it picks one of two other losses
        assert re.search(r"\[num_rows|[Ss]hapes.* as in|As (\w+_)+baseline,", told.own + told.module), (
            f"{name}: no shape"
        )
        assert "verl 0.9.1" in told.module, f"{name}: no counterpart"
