"""Compute the cases with flat (nested) inputs again, in an environment that has verl 0.9.1.

    python tests/golden/recompute_nested.py

The set was first stored with flat inputs `in/layout/*` that were not the ones its outputs came from: verl itself does
not give the outputs back. This script runs verl on the stored inputs and writes outputs and metrics of layout/,
ppo_loss/ and value_loss/.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorData, TensorDict
from verl.workers.utils.losses import ppo_loss, value_loss
from verl.workers.utils.padding import no_padding_2_padding, response_from_nested

HERE = Path(__file__).parent
LOSS_DEFAULTS = {
    "loss_agg_mode": "token-mean",
    "loss_scale_factor": None,
    "entropy_coeff": 0.0,
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
}


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


class Inputs:
    """The inputs of a case, cut by prompt and response lengths."""

    def __init__(self, case: dict, arrays: dict[str, np.ndarray]) -> None:
        self.columns = {name: torch.from_numpy(arrays[path].copy()) for name, path in case["inputs"].items()}
        self.prompt_lens = self.columns.pop("prompt_len").tolist()
        self.response_lens = self.columns.pop("response_len").tolist()

    def nested(self, flat: torch.Tensor) -> torch.Tensor:
        return jagged(list(flat.split([p + r for p, r in zip(self.prompt_lens, self.response_lens, strict=False)])))

    def data(self, case: dict) -> TensorDict:
        ragged = {
            n: jagged([r[:k] for r, k in zip(c, self.response_lens, strict=False)])
            for n, c in self.columns.items()
            if c.dim() == 2
        }
        ragged["prompts"] = jagged([torch.zeros(n, dtype=torch.int64) for n in self.prompt_lens])
        ragged["responses"] = jagged([torch.zeros(n, dtype=torch.int64) for n in self.response_lens])
        data = TensorDict(ragged, batch_size=[len(self.prompt_lens)])
        for name, value in case["args"].get("data", {}).items():
            data[name] = NonTensorData(value)
        return data


def layout(case: dict, inputs: Inputs) -> dict[str, torch.Tensor]:
    if "tensor (flat)" not in inputs.columns:
        return {}
    nested, data = inputs.nested(inputs.columns["tensor (flat)"]), inputs.data(case)
    if case["function"] == "no_padding_2_padding":
        return {"padded": no_padding_2_padding(nested, data)}
    return {"values (flat)": response_from_nested(nested, data["responses"]).values()}


def actor_loss(case: dict, inputs: Inputs) -> dict[str, torch.Tensor]:
    flat = {name: inputs.columns[f"{name} (flat)"].requires_grad_() for name in ("log_probs", "entropy")}
    args = {name: value for name, value in case["args"].items() if name != "data"}
    config = OmegaConf.create({**LOSS_DEFAULTS, **args})
    loss, metrics = ppo_loss(config, {name: inputs.nested(x) for name, x in flat.items()}, inputs.data(case))
    loss.backward()
    case["metrics"] = {name: stored(value) for name, value in metrics.items()}
    grads = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in flat.items()}
    return {"loss": loss, **{f"grad {name} (flat)": grad for name, grad in grads.items()}}


def critic_loss(case: dict, inputs: Inputs) -> dict[str, torch.Tensor]:
    flat = inputs.columns.pop("values (flat model output)").requires_grad_()
    args = {name: value for name, value in case["args"].items() if name != "data"}
    loss, metrics = value_loss(
        OmegaConf.create({**LOSS_DEFAULTS, **args}), {"values": inputs.nested(flat)}, inputs.data(case)
    )
    loss.backward()
    case["metrics"] = {name: stored(value) for name, value in metrics.items()}
    return {"loss": loss, "grad values (flat)": flat.grad}


def stored(metric: object) -> object:
    if hasattr(metric, "aggregation"):
        return {"values": metric.values, "aggregation": str(metric.aggregation)}
    return metric


def main() -> None:
    with np.load(HERE / "verl_golden.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    golden = json.loads(gzip.decompress((HERE / "verl_golden.json.gz").read_bytes()))
    recompute = {"layout": layout, "ppo_loss": actor_loss, "value_loss": critic_loss}
    for case in golden["cases"]:
        compute = recompute.get(case["name"].split("/")[0])
        if compute is None:
            continue
        if "tensor" in case["inputs"]:  # response_to_nested: no flat input
            continue
        for name, value in compute(case, Inputs(case, arrays)).items():
            value = value.detach().numpy()
            assert arrays[case["outputs"][name]].shape == value.shape, case["name"]
            arrays[case["outputs"][name]] = value
    np.savez_compressed(HERE / "verl_golden.npz", **arrays)
    with open(HERE / "verl_golden.json.gz", "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(json.dumps(golden, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
