"""Policy losses and the value loss against verl's numbers: value, gradient, metrics."""

from __future__ import annotations

import pytest
import torch

from kitlib.algos import AlgoError, LossConfig, compute_policy_loss_vanilla, get_policy_loss_fn, register_policy_loss
from kitlib.algos.policy_loss import POLICY_LOSS_REGISTRY
from kitlib.algos.value_loss import compute_value_loss
from tests.golden.cases import Case, assert_close, assert_metrics, cases

SETTINGS = {
    "clip_ratio",
    "clip_ratio_low",
    "clip_ratio_high",
    "clip_ratio_c",
    "tau_pos",
    "tau_neg",
    "policy_loss",
    "global_batch_info",
}


@pytest.mark.parametrize("case", cases("policy/"))
def test_policy_loss_matches_verl(case: Case) -> None:
    torch.manual_seed(case.args["torch_seed"])
    inputs = case.tensors()
    inputs["response_mask"] = inputs["response_mask"].to(getattr(torch, case.args["mask_dtype"]))
    log_prob = inputs["log_prob"].requires_grad_()
    config = LossConfig(**{name: value for name, value in case.args.items() if name in SETTINGS})
    loss_fn = get_policy_loss_fn(case.name.split("/")[1])
    loss, metrics = loss_fn(**inputs, loss_agg_mode=case.args["loss_agg_mode"], config=config)
    loss.backward()
    assert_close(loss, case.expected("loss"), "loss")
    assert_close(log_prob.grad, case.expected("grad_log_prob"), "gradient")
    pads = (~inputs["response_mask"].any(dim=1)).any()
    if (
        case.name.split("/")[1] == "bypass_mode" and pads
    ):  # rollout_corr/* without padding rows: test_rollout_correction.py
        metrics = {name: value for name, value in metrics.items() if name.startswith("actor/")}
        assert_metrics(metrics, {name: value for name, value in case.metrics.items() if name.startswith("actor/")})
    else:
        assert_metrics(metrics, case.metrics)


@pytest.mark.parametrize("case", cases("value/"))
def test_value_loss_matches_verl(case: Case) -> None:
    inputs = case.tensors()
    vpreds = inputs["vpreds"].requires_grad_()
    loss, clipped = compute_value_loss(**inputs, **case.args)
    loss.backward()
    assert_close(loss, case.expected("vf_loss"), "loss")
    assert_close(clipped, case.expected("vf_clipfrac"), "clip fraction")
    assert_close(vpreds.grad, case.expected("grad_vpreds"), "gradient")


def test_gradient_in_float64() -> None:
    torch.manual_seed(0)
    old, advantages = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    log_prob = (old + 0.5 * torch.randn(3, 4, dtype=torch.float64)).requires_grad_()
    mask = torch.tensor([[1, 1, 1, 0]] * 3)
    assert torch.autograd.gradcheck(lambda x: compute_policy_loss_vanilla(old, x, advantages, mask)[0], log_prob)


def test_clip_and_dual_clip_by_hand() -> None:
    old = torch.zeros(1, 4)
    log_prob = torch.tensor([[2.0, 2.0, 0.5, 5.0]]).log()
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    loss, metrics = compute_policy_loss_vanilla(old, log_prob, advantages, torch.ones(1, 4), config=LossConfig())
    # per token: -min(2, 1.2) = -1.2; max(2, 1.2) = 2; -min(.5, .8) = -.5; min(max(5, 1.2), 3) = 3
    assert loss.item() == pytest.approx((-1.2 + 2 - 0.5 + 3) / 4)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(0.25)
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(0.25)


def test_loss_config_reads_an_actor_section_and_keeps_defaults_for_null() -> None:
    class Actor:
        clip_ratio = 0.1
        clip_ratio_high = 0.3
        clip_ratio_low = None

    config = LossConfig.from_actor(Actor(), batch_num_tokens=7)
    assert config.clip_range() == (0.1, 0.3)
    assert config.clip_ratio_c == 3.0
    assert config.global_batch_info == {"batch_num_tokens": 7}


def test_wrong_arguments_are_named() -> None:
    ones = torch.ones(1, 1)
    with pytest.raises(AlgoError, match="clip_ratio_c=1.0 must be above 1"):
        compute_policy_loss_vanilla(ones, ones, ones, ones, config=LossConfig(clip_ratio_c=1.0))
    with pytest.raises(AlgoError, match="loss_mode='ppo' is unknown; known are .*vanilla"):
        get_policy_loss_fn("ppo")
    with pytest.raises(AlgoError, match="'vanilla' is already"):
        register_policy_loss("vanilla")(agg_like)
    assert POLICY_LOSS_REGISTRY["vanilla"] is compute_policy_loss_vanilla


def agg_like() -> None:
    """A function that must not take the place of the shipped loss."""
