"""How each golden case calls verl 0.9.1. Needs verl; used by regenerate.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorData, TensorDict
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.workers.config.actor import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss, value_loss
from verl.workers.utils.padding import no_padding_2_padding, response_from_nested, response_to_nested

Case, Columns = dict[str, Any], dict[str, Any]
Result = tuple[dict[str, Any], dict[str, Any]]  # outputs by name; what else changes in the case (metrics, args)
LOSS_DEFAULTS = {
    "loss_agg_mode": "token-mean",
    "loss_scale_factor": None,
    "entropy_coeff": 0.0,
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
}


def compute(case: Case, inputs: dict[str, np.ndarray]) -> Result:
    """Outputs and changes of one case. ValueError where verl refuses the inputs."""
    columns: Columns = {
        name: torch.from_numpy(value.copy()) if value.dtype.kind in "biuf" else value.astype(object)
        for name, value in inputs.items()
    }
    return CALLS[case["name"].split("/")[0]](case, columns)


def _as_numpy(outputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in outputs.items()}


def _advantage(case: Case, columns: Columns) -> Result:
    name, args = case["name"].split("/")[1], dict(case["args"])
    config = {key.removeprefix("config."): args.pop(key) for key in [*args] if key.startswith("config.")}
    if "index" in columns:
        columns["index"] = np.asarray(columns["index"])
    if name == "gdpo_two_rewards":
        name, config, args = "gdpo", args, _reward_parts(columns)
    if config:
        args["config"] = OmegaConf.create(config)
    advantages, returns = core_algos.get_adv_estimator_fn(name)(**columns, **args)
    return _as_numpy({"advantages": advantages, "returns": returns}), {}


def _reward_parts(columns: Columns) -> dict[str, Any]:
    """Moves the parts of the reward to where verl looks for them."""
    parts = {name: columns.pop(f"reward {name}").numpy() for name in ("format", "accuracy")}
    lengths, mask = columns.pop("valid response length"), columns["response_mask"]
    attention = torch.arange(mask.shape[1])[None] < lengths[:, None]  # [num_rows, R]
    prompt = torch.ones(len(mask), 1, dtype=torch.int64)
    batch = {"prompts": prompt, "attention_mask": torch.cat([prompt, attention.long()], dim=1)}
    return {"non_tensor_batch": parts, "batch": batch}


def _multi(case: Case, columns: Columns) -> Result:
    args = dict(case["args"])
    uid, keys = np.array(args.pop("uid"), dtype=object), args.pop("batch_keys")
    data = DataProto.from_dict(tensors=columns, non_tensors={"uid": uid})
    config = OmegaConf.create({"gamma": 0.98})  # what reinforce_plus_plus reads; the case does not say it
    data = compute_advantage_for_multi_trajectories(data, keys, config=config, **args)
    return _as_numpy({name: data.batch[name] for name in ("advantages", "returns")}), {}


def _agg(case: Case, columns: Columns) -> Result:
    return _as_numpy({"loss": core_algos.agg_loss(**columns, **case["args"])}), {}


def _policy(case: Case, columns: Columns) -> Result:
    args = dict(case["args"])
    torch.manual_seed(args.pop("torch_seed"))
    columns["response_mask"] = columns["response_mask"].to(getattr(torch, args.pop("mask_dtype")))
    log_prob, mode = columns["log_prob"].requires_grad_(), args.pop("loss_agg_mode")
    loss_fn = core_algos.get_policy_loss_fn(case["name"].split("/")[1])
    needs_class = case["name"].split("/")[1] in ("gspo", "sapo", "cispo")
    config = _actor_config(args) if needs_class else OmegaConf.create(args)
    loss, metrics = loss_fn(**columns, loss_agg_mode=mode, config=config)
    loss.backward()
    return _as_numpy({"loss": loss, "grad_log_prob": log_prob.grad}), {"metrics": metrics}


def _actor_config(args: dict[str, Any]) -> ActorConfig:
    sizes = {"rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
    settings = {name: value for name, value in args.items() if name != "policy_loss"}
    return ActorConfig(strategy="fsdp", policy_loss=PolicyLossConfig(**args["policy_loss"]), **sizes, **settings)


def _kl(case: Case, columns: Columns) -> Result:
    logprob = columns["logprob"].requires_grad_()
    kld = core_algos.kl_penalty(logprob, columns["ref_logprob"], case["args"]["kl_penalty"])
    (kld * columns["response_mask"]).sum().backward()
    return _as_numpy({"kld": kld, "grad of masked sum wrt logprob": logprob.grad}), {}


def _kl_in_reward(case: Case, columns: Columns) -> Result:
    args = dict(case["args"])
    penalty, rewards, metrics = args.pop("kl_penalty"), [], {"beta": [], "current_kl": []}
    controller = core_algos.get_kl_controller(OmegaConf.create(args))
    for _ in range(3):
        data, told = apply_kl_penalty(DataProto.from_dict(tensors=dict(columns)), controller, penalty)
        rewards.append(data.batch["token_level_rewards"])
        metrics["beta"].append(told["actor/reward_kl_penalty_coeff"])
        metrics["current_kl"].append(told["actor/reward_kl_penalty"])
    output = {"token_level_rewards[3,B,T]": torch.stack(rewards).numpy()}
    return output, {"metrics": {**metrics, "beta_after": controller.value}}


def _value(case: Case, columns: Columns) -> Result:
    vpreds = columns["vpreds"].requires_grad_()
    loss, clipped = core_algos.compute_value_loss(**columns, **case["args"])
    loss.backward()
    return _as_numpy({"vf_loss": loss, "vf_clipfrac": clipped, "grad_vpreds": vpreds.grad}), {}


def _rollout_corr(case: Case, columns: Columns) -> Result:
    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(**columns, **case["args"])
    outputs = {"response_mask": mask}
    if weights is not None:
        outputs["rollout_is_weights"] = weights.batch["rollout_is_weights"]
    return _as_numpy(outputs), {"metrics": metrics}


def _metrics(case: Case, columns: Columns) -> Result:
    if case["function"] == "MetricsAggregator":  # its inputs are numbers in `args`, and there is nothing to draw
        return {}, {}
    if case["function"] == "calculate_debug_metrics":
        data = {**columns, "responses": columns["response_mask"], "attention_mask": columns["response_mask"]}
        return {}, {"metrics": calculate_debug_metrics(DataProto.from_dict(tensors=data))}
    return {}, {"metrics": compute_data_metrics(_batch(case, columns), use_critic=case["args"]["use_critic"])}


def _batch(case: Case, columns: Columns) -> DataProto:
    """A padded batch with the lengths of the case, prompts on the left."""
    widths = [case["args"][f"{name} width"] for name in ("prompts", "responses")]
    lens = columns.pop("prompt_len"), columns.pop("response_length")
    prompts, responses = (torch.zeros(len(lens[0]), width, dtype=torch.int64) for width in widths)
    left = torch.arange(widths[0])[None] >= widths[0] - lens[0][:, None]
    right = torch.arange(widths[1])[None] < lens[1][:, None]
    data = {
        **columns,
        "token_level_scores": columns["token_level_rewards"],
        "prompts": prompts,
        "responses": responses,
        "attention_mask": torch.cat([left, right], dim=1).long(),
    }
    turns = np.array([row % 5 for row in range(len(prompts))])
    return DataProto.from_dict(tensors=data, non_tensors={"__num_turns__": turns})


def _balance(case: Case, columns: Columns) -> Result:
    workload = calculate_workload(columns["seq_len"])
    parts = case["args"]["k_partitions"]
    partitions = get_seqlen_balanced_partitions(workload.tolist(), k_partitions=parts, equal_size=True)
    return _as_numpy({"workload": workload}), {"args": {**case["args"], "partitions": partitions}}


# ------------------------------------------------------------------------------------- cases with flat (nested) inputs


class Flat:
    """The columns of a case, cut by prompt and response lengths."""

    def __init__(self, columns: Columns) -> None:
        self.prompt_lens = columns.pop("prompt_len").tolist()
        self.response_lens = columns.pop("response_len").tolist()
        self.columns = columns

    def nested(self, flat: Tensor) -> Tensor:
        """[num_rows, P + R] of a flat column."""
        lens = [p + r for p, r in zip(self.prompt_lens, self.response_lens, strict=True)]
        return _jagged(list(flat.split(lens)))

    def data(self, case: Case) -> TensorDict:
        """The batch as a worker has it: responses ragged, prompts and responses by their lengths."""
        ragged = {
            name: _jagged([row[:num] for row, num in zip(column, self.response_lens, strict=True)])
            for name, column in self.columns.items()
            if column.dim() == 2
        }
        ragged["prompts"] = _jagged([torch.zeros(n, dtype=torch.int64) for n in self.prompt_lens])
        ragged["responses"] = _jagged([torch.zeros(n, dtype=torch.int64) for n in self.response_lens])
        data = TensorDict(ragged, batch_size=[len(self.prompt_lens)])
        for name, value in case["args"].get("data", {}).items():
            data[name] = NonTensorData(value)
        return data


def _jagged(rows: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _layout(case: Case, columns: Columns) -> Result:
    flat = Flat(columns)
    if case["function"] == "response_to_nested":
        mask = _jagged([torch.ones(n) for n in flat.response_lens])
        return _as_numpy({"values (flat)": response_to_nested(columns["tensor"], mask).values()}), {}
    nested, data = flat.nested(columns["tensor (flat)"]), flat.data(case)
    if case["function"] == "no_padding_2_padding":
        return _as_numpy({"padded": no_padding_2_padding(nested, data)}), {}
    return _as_numpy({"values (flat)": response_from_nested(nested, data["responses"]).values()}), {}


def _ppo_loss(case: Case, columns: Columns) -> Result:
    inputs = {name: columns[f"{name} (flat)"].requires_grad_() for name in ("log_probs", "entropy")}
    flat = Flat(columns)
    output = {name: flat.nested(value) for name, value in inputs.items()}
    loss, metrics = ppo_loss(_loss_config(case), output, flat.data(case))
    loss.backward()
    grads = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in inputs.items()}
    outputs = {"loss": loss, **{f"grad {name} (flat)": grad for name, grad in grads.items()}}
    return _as_numpy(outputs), {"metrics": {name: _stored(value) for name, value in metrics.items()}}


def _value_loss(case: Case, columns: Columns) -> Result:
    values = columns.pop("values (flat model output)").requires_grad_()
    flat = Flat(columns)
    loss, metrics = value_loss(_loss_config(case), {"values": flat.nested(values)}, flat.data(case))
    loss.backward()
    outputs = {"loss": loss, "grad values (flat)": values.grad}
    return _as_numpy(outputs), {"metrics": {name: _stored(value) for name, value in metrics.items()}}


def _loss_config(case: Case) -> Any:
    return OmegaConf.create({**LOSS_DEFAULTS, **{k: v for k, v in case["args"].items() if k != "data"}})


def _stored(metric: Any) -> Any:
    if hasattr(metric, "aggregation"):
        return {"values": metric.values, "aggregation": str(metric.aggregation)}
    return metric


CALLS: dict[str, Callable[[Case, Columns], Result]] = {
    "adv": _advantage,
    "multi": _multi,
    "agg": _agg,
    "policy": _policy,
    "kl": _kl,
    "kl_in_reward": _kl_in_reward,
    "value": _value,
    "rollout_corr": _rollout_corr,
    "metrics": _metrics,
    "balance": _balance,
    "layout": _layout,
    "ppo_loss": _ppo_loss,
    "value_loss": _value_loss,
}
