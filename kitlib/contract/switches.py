"""Config keys that decide which stages run and which fields they touch.

verl 0.9.1 spreads these decisions over trainer/ppo/utils.py (need_reference_policy, need_critic),
trainer/ppo/v1/trainer_base.py and trainer/config/ppo_trainer.yaml. Here each decision is a `Condition`: a sentence
for the reader and a test for the machine.

`SWITCHES` holds verl's default of every key that a condition reads, so that the contract also answers without a config
(for a live verl run whose config nobody handed over).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SWITCHES: dict[str, Any] = {
    "trainer.v1.trainer_mode": "sync",
    "trainer.critic_warmup": 0,
    "trainer.rollout_data_dir": None,
    "trainer.test_freq": -1,
    "trainer.val_before_train": True,
    "trainer.save_freq": -1,
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": False,
    "algorithm.use_pf_ppo": False,
    "algorithm.filter_groups.enable": False,
    "algorithm.filter_groups.metric": "reward",
    "algorithm.rollout_correction.bypass_mode": False,
    "algorithm.rollout_correction.rollout_is": None,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "critic.enable": None,
    "reward.reward_model.enable": False,
    "reward.reward_model.enable_resource_pool": False,
    "distillation.enabled": False,
    "kitlib.record_update": False,
}


def switch(config: Any, key: str) -> Any:
    """Value of a dotted config key, or verl's default where the config is None or does not have the key.

    `config` is a `kitlib.config.Config`, an OmegaConf config or a (nested) dict.
    """
    if hasattr(type(config), "select"):
        value = config.select(key, None)
    else:
        value = config
        for name in key.split("."):
            value = value.get(name) if hasattr(value, "get") else None
    return SWITCHES[key] if value is None else value


@dataclass(frozen=True)
class Condition:
    """When something happens: `text` says it in terms of config keys, `holds(config)` decides it."""

    text: str
    test: Callable[[Any], bool]

    def holds(self, config: Any = None) -> bool:
        return bool(self.test(config))

    def __and__(self, other: Condition) -> Condition:
        if "always" in (self.text, other.text):
            return other if self.text == "always" else self
        return Condition(f"{self.text} and {other.text}", lambda c: self.test(c) and other.test(c))

    def __or__(self, other: Condition) -> Condition:
        return Condition(f"{self.text} or {other.text}", lambda c: self.test(c) or other.test(c))

    def __invert__(self) -> Condition:
        return Condition(f"not ({self.text})", lambda c: not self.test(c))


def _on(key: str) -> Condition:
    return Condition(key, lambda config: bool(switch(config, key)))


def _critic_in_use(config: Any) -> bool:
    enabled = switch(config, "critic.enable")
    return bool(enabled) if enabled is not None else switch(config, "algorithm.adv_estimator") == "gae"


def _estimator(*names: str) -> Condition:
    text = f"algorithm.adv_estimator is {' or '.join(names)}"
    return Condition(text, lambda config: switch(config, "algorithm.adv_estimator") in names)


ALWAYS = Condition("always", lambda config: True)
ASYNC = Condition("trainer.v1.trainer_mode is not sync", lambda c: switch(c, "trainer.v1.trainer_mode") != "sync")
BYPASS = _on("algorithm.rollout_correction.bypass_mode")
ROLLOUT_LOG_PROBS = _on("actor_rollout_ref.rollout.calculate_log_probs")
KL_IN_REWARD = _on("algorithm.use_kl_in_reward")
KL_LOSS = _on("actor_rollout_ref.actor.use_kl_loss")
REFERENCE = KL_LOSS | KL_IN_REWARD
CRITIC = Condition("critic.enable, or null and algorithm.adv_estimator is gae", _critic_in_use)
REWARD_MODEL_COLOCATED = _on("reward.reward_model.enable") & ~_on("reward.reward_model.enable_resource_pool")
FILTER_BY_REWARD = Condition(
    "algorithm.filter_groups.enable with metric reward",
    lambda c: switch(c, "algorithm.filter_groups.enable") and switch(c, "algorithm.filter_groups.metric") == "reward",
)
FILTER_BY_OTHER = Condition(
    "algorithm.filter_groups.enable with another metric",
    lambda c: switch(c, "algorithm.filter_groups.enable") and switch(c, "algorithm.filter_groups.metric") != "reward",
)
# verl corrects whenever the block exists, log-probs of the rollout are there and bypass_mode is off.
ROLLOUT_CORRECTION = ROLLOUT_LOG_PROBS & ~BYPASS
IMPORTANCE_WEIGHTS = ROLLOUT_CORRECTION & _on("algorithm.rollout_correction.rollout_is")
# What the estimators read that verl's V1 trainer never fetches.
GREEDY_BASELINE = _estimator("remax")
TOKEN_BASELINE = _estimator("optimal_token_baseline", "tir_optimal_token_baseline")
REWARD_PARTS = _estimator("gdpo")
PF_PPO = _on("algorithm.use_pf_ppo")
RECORD_UPDATE = _on("kitlib.record_update")
DISTILLATION = _on("distillation.enabled")
DUMP_ROLLOUTS = _on("trainer.rollout_data_dir")
CHECKPOINTS = Condition("trainer.save_freq > 0", lambda c: switch(c, "trainer.save_freq") > 0)
VALIDATION = Condition(
    "trainer.val_before_train or trainer.test_freq > 0",
    lambda c: switch(c, "trainer.val_before_train") or switch(c, "trainer.test_freq") > 0,
)
