"""Settings of V1 that the serial pipeline does not act on.

verl 0.9.1: nothing; its V0 trainer ignores what it does not read.
"""

from __future__ import annotations

from typing import Any

from kitlib.config import Config, ConfigError
from kitlib.config.printing import inline

# {setting: values that the serial pipeline acts on}; beside what kitlib.config.support refuses for every pipeline.
SERIAL: dict[str, tuple[Any, ...]] = {
    "algorithm.filter_groups.enable": (False,),
    "algorithm.use_pf_ppo": (False,),
    "reward.reward_model.enable": (False,),
    "distillation.enabled": (False,),
    "trainer.save_freq": (-1, 0),
    "trainer.resume_mode": ("auto", "disable"),
    "trainer.log_val_generations": (0,),
    "trainer.checkpoint_callback_class": (None,),
    "kitlib.runtime": ("local",),
}

# Estimators that read fields which only V1 makes.
FED_BY_V1 = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")


def require_serial(config: Config) -> None:
    """Raise one ConfigError with a line for every setting that needs V1."""
    refused = [
        f"{key}={inline(config.select(key))} needs trainer.use_v1=true; with false, set {key}={inline(values[0])}"
        for key, values in SERIAL.items()
        if config.select(key) not in values
    ]
    if config.algorithm.adv_estimator in FED_BY_V1:
        refused.append(
            f"algorithm.adv_estimator={config.algorithm.adv_estimator} needs fields that only trainer.use_v1=true "
            "provides: choose grpo"
        )
    prompts = config.data.train_batch_size
    for key in ("actor_rollout_ref.actor.ppo_mini_batch_size", "critic.ppo_mini_batch_size"):
        if prompts % config.select(key):
            refused.append(
                f"data.train_batch_size={prompts} is no multiple of {key}={config.select(key)}: "
                "with trainer.use_v1=false no padding rows fill the last mini-batch"
            )
    if refused:
        raise ConfigError("\n".join(refused))
