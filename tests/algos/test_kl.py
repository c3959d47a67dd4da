"""KL estimates, their gradients, and the controllers, against verl's numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kitlib.algos import AlgoError, apply_kl_penalty, get_kl_controller, kl_penalty
from tests.golden.cases import Case, assert_close, assert_metrics, cases


@pytest.mark.parametrize("case", cases("kl/"))
def test_kl_penalty_matches_verl(case: Case) -> None:
    inputs = case.tensors()
    logprob = inputs["logprob"].requires_grad_()
    kld = kl_penalty(logprob, inputs["ref_logprob"], **case.args)
    assert_close(kld, case.expected("kld"), "kld")
    dataset = case.inputs["logprob"].split("/")[1]
    mask = Case("", "", {"mask": f"in/{dataset}/response_mask"}, {}, {}, {}).tensors()["mask"]
    (kld * mask).sum().backward()
    assert_close(logprob.grad, case.expected("grad of masked sum wrt logprob"), "gradient")


@pytest.mark.parametrize("case", cases("kl_in_reward/"))
def test_kl_in_reward_matches_verl(case: Case) -> None:
    controller = get_kl_controller(SimpleNamespace(**case.args))
    betas, kls = [], []
    for step in range(3):
        rewards, metrics = apply_kl_penalty(
            **case.tensors(), kl_ctrl=controller, kl_penalty_name=case.args["kl_penalty"]
        )
        assert_close(rewards, case.expected("token_level_rewards[3,B,T]")[step], f"rewards of step {step}")
        betas.append(metrics["actor/reward_kl_penalty_coeff"])
        kls.append(metrics["actor/reward_kl_penalty"])
    assert betas == pytest.approx(case.metrics["beta"], rel=1e-5)
    assert kls == pytest.approx(case.metrics["current_kl"], rel=1e-5)
    assert_metrics({"beta_after": controller.value}, {"beta_after": case.metrics["beta_after"]})


def test_k3_is_never_negative_and_agrees_with_k1_on_average() -> None:
    torch.manual_seed(0)
    policy, reference = torch.randn(2, 5).mul(0.5).log_softmax(-1)  # small enough that no clamp acts
    exact = (policy.exp() * (policy - reference)).sum()
    k3 = kl_penalty(policy, reference, "k3")
    assert (k3 >= 0).all()
    torch.testing.assert_close((policy.exp() * k3).sum(), exact)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(AlgoError, match="unknown KL penalty 'k4'"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "k4")
    with pytest.raises(AlgoError, match="kl_ctrl.type='pid'"):
        get_kl_controller(SimpleNamespace(type="pid"))
    with pytest.raises(AlgoError, match="horizon=0"):
        get_kl_controller(SimpleNamespace(type="adaptive", kl_coef=0.1, target_kl=0.1, horizon=0))
