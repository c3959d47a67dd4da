"""The actor's loss against verl's numbers: value, gradients, metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kitlib.algos import compute_value_loss
from kitlib.transfer_queue import jagged
from kitlib.workers.errors import WorkerError
from kitlib.workers.losses import ppo_loss
from kitlib.workers.padding import response_from_nested
from tests.golden.cases import Case, assert_close, assert_metrics, cases

DEFAULTS: dict[str, Any] = {
    "loss_agg_mode": "token-mean",
    "loss_scale_factor": None,
    "entropy_coeff": 0.0,
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
    "kl_loss_type": "k3",
}


@pytest.mark.parametrize("case", cases("ppo_loss/"))
def test_loss_matches_verl(case: Case) -> None:
    inputs = case.tensors()
    actor = SimpleNamespace(**{**DEFAULTS, **case.args, "policy_loss": SimpleNamespace(loss_mode="vanilla")})
    flat = {name: inputs[f"{name} (flat)"].requires_grad_() for name in ("log_probs", "entropy")}
    seq_lens = (inputs["prompt_len"] + inputs["response_len"]).tolist()
    mask = jagged([torch.ones(num) for num in inputs["response_len"].tolist()])
    cut = {}
    for name, values in flat.items():
        rows = response_from_nested(jagged(list(values.split(seq_lens))), mask).unbind()
        cut[name] = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    width = cut["log_probs"].shape[1]
    response = {name: inputs[name][:, :width] for name in inputs if "flat" not in name and inputs[name].dim() == 2}
    info = {**case.args["data"], "loss_scale_factor": actor.loss_scale_factor}
    output = ppo_loss(actor, cut["log_probs"], cut["entropy"], response, info)
    output.loss.backward()
    assert_close(output.loss, case.expected("loss"), "loss")
    for name in flat:
        grad = torch.zeros_like(flat[name]) if flat[name].grad is None else flat[name].grad
        assert_close(grad, case.expected(f"grad {name} (flat)"), f"gradient of {name}")
    shares = {name: value for name, value in output.shares.items() if name != "actor/loss"}
    assert_metrics({**shares, **output.means}, metrics_of(case))
    assert output.shares["actor/loss"] == pytest.approx(output.loss.item())


def metrics_of(case: Case) -> dict[str, float]:
    """verl's metrics under the names that its trainer gives them; kl_coef is added by the worker."""
    named = {
        name if "/" in name else f"actor/{name}": value for name, value in case.metrics.items() if name != "kl_coef"
    }
    return {name: value["values"][0] for name, value in named.items()}


def test_missing_reference_is_named() -> None:
    ones = torch.ones(1, 2)
    actor = SimpleNamespace(**{**DEFAULTS, "use_kl_loss": True, "policy_loss": SimpleNamespace(loss_mode="vanilla")})
    response = {"response_mask": ones, "old_log_probs": ones, "advantages": ones}
    with pytest.raises(WorkerError, match="use_kl_loss=true needs the field ref_log_prob"):
        ppo_loss(actor, ones, None, response, {})


@pytest.mark.parametrize("case", cases("value_loss/"))
def test_value_loss_on_nested_values_matches_verl(case: Case) -> None:
    inputs = case.tensors()
    flat = inputs["values (flat model output)"].requires_grad_()
    seq_lens = (inputs["prompt_len"] + inputs["response_len"]).tolist()
    mask = jagged([torch.ones(num) for num in inputs["response_len"].tolist()])
    rows = response_from_nested(jagged(list(flat.split(seq_lens))), mask).unbind()
    vpreds = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    columns = {name: inputs[name][:, : vpreds.shape[1]] for name in ("values", "returns", "response_mask")}
    settings = {name: value for name, value in case.args.items() if name != "data"}
    loss, clipped = compute_value_loss(vpreds, **columns, **settings, **case.args["data"])
    loss.backward()
    assert_close(loss, case.expected("loss"), "loss")
    assert_close(flat.grad, case.expected("grad values (flat)"), "gradient")
    assert clipped.item() == pytest.approx(case.metrics["critic/vf_clipfrac"], rel=1e-5)
