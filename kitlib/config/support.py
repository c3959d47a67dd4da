"""Settings that exist, because the contract and the views reason with them, but that this version does not act on.

A run that silently ignored one of them would lie; `TaskRunner` refuses it instead.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from kitlib.config.config import Config
from kitlib.config.errors import ConfigError
from kitlib.config.printing import inline
from kitlib.contract import STAGES

# {setting: values that a run acts on}; every other value is refused.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "trainer.use_v1": (True, False),
    "trainer.v1.trainer_mode": ("sync", "colocate_async", "separate_async"),
    "trainer.checkpoint_callback_class": (None,),
    "actor_rollout_ref.actor.strategy": ("fsdp2",),
    "actor_rollout_ref.actor.checkpoint.async_save": (False,),
    "actor_rollout_ref.rollout.name": ("transformers",),
    "reward.reward_model.n_gpus_per_node": (8,),
    "reward.reward_model.nnodes": (0,),
    "transfer_queue.backend.storage_backend": ("SimpleStorage",),
    "distillation.enabled": (False,),
    "trainer.log_val_generations": (0,),
    "trainer.max_critic_ckpt_to_keep": (None,),  # a checkpoint stays or goes as a whole
    "critic.strategy": ("fsdp2",),
    "actor_rollout_ref.hybrid_engine": (True,),
    "actor_rollout_ref.model.tokenizer_path": (None,),
    "actor_rollout_ref.actor.fsdp_config.model_dtype": ("fp32",),
    "actor_rollout_ref.actor.fsdp_config.fsdp_size": (-1,),
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": (None,),
    "reward.reward_manager.source": ("register",),
    "reward.sandbox_fusion.url": (None,),
    "kitlib.runtime": ("local",),
}


def require_supported(config: Config) -> None:
    """Raise one ConfigError with a line for every setting whose value this version, or this machine, does not act on.

    An estimator or loss that nobody has registered raises AlgoError.
    """
    # Here, so that reading settings does not need torch.
    import torch

    from kitlib.algos import get_policy_loss_fn

    get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode)
    refused = [*_missing_inputs(config), *_missing_packages(config)]
    for key, supported in SUPPORTED.items():
        if config.select(key) not in supported:
            wanted = " or ".join(inline(value) for value in supported)
            refused.append(f"{key}={inline(config.select(key))} is not supported by this version: set {key}={wanted}")
    if config.kitlib.record_update and not config.trainer.use_v1:
        refused.append(
            "kitlib.record_update=true writes to the queue, and trainer.use_v1=false has none: set one of them"
        )
    if config.trainer.device == "cuda" and not torch.cuda.is_available():
        refused.append("trainer.device=cuda, but torch finds no GPU here: set trainer.device=auto or cpu")
    if refused:
        raise ConfigError("\n".join(refused))


def _missing_inputs(config: Config) -> Iterator[str]:
    """A line for every field that the estimator cannot do without and that no stage before it writes."""
    from kitlib.algos.advantage import required_fields

    estimator = config.algorithm.adv_estimator
    before = [STAGES[name] for name in list(STAGES)[: list(STAGES).index("compute_advantage")]]
    writers = {
        field: [stage.runs_when & need.when for stage in before for need in stage.writes if need.field == field]
        for field in required_fields(estimator)
    }
    for field, conditions in sorted(writers.items()):
        if not any(condition.holds(config) for condition in conditions):
            texts = " or ".join(condition.text for condition in conditions)
            hint = f"it is written if {texts}" if texts else "no stage writes a field of that name"
            yield f"algorithm.adv_estimator={estimator} needs the field {field}, which this run does not have: {hint}"


def _missing_packages(config: Config) -> Iterator[str]:
    """A line for every optional package, or device, that the model settings need and this machine lacks."""
    import torch

    model = config.actor_rollout_ref.model
    if (model.lora_rank > 0 or model.lora_adapter_path is not None) and importlib.util.find_spec("peft") is None:
        yield "actor_rollout_ref.model.lora_rank needs the package peft: pip install 'kitlib[lora]'"
    is_on_gpu = config.trainer.device != "cpu" and torch.cuda.is_available()
    if model.use_fused_kernels and not (is_on_gpu and importlib.util.find_spec("liger_kernel")):
        wanted = "the package liger-kernel: pip install liger-kernel" if is_on_gpu else "a GPU: set it to false"
        yield f"actor_rollout_ref.model.use_fused_kernels=true needs {wanted}"
