"""What the config decides, as far as a rule wants to know it: group size, batch size, thresholds, estimator.

verl 0.9.1: trainer/config/ppo_trainer.yaml. A key that is not set has verl's default. Without any config, what a
default would get wrong (group and batch size) is None, and the rules that need it look at the queue instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kitlib.contract import SWITCHES, Condition
from kitlib.contract.switches import BYPASS, CRITIC, DISTILLATION, REWARD_MODEL_COLOCATED, ROLLOUT_CORRECTION
from kitlib.inspector.settings import sample_size, setting

DEFAULTS: dict[str, Any] = {
    **SWITCHES,
    "data.train_batch_size": 1024,
    "data.gen_batch_size": None,
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.val_kwargs.n": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "critic.ppo_mini_batch_size": 256,
    "trainer.v1.separate_async.parameter_sync_step": 4,
    "trainer.v1.sampler.max_off_policy_threshold": 8,
    "trainer.v1.sampler.max_off_policy_strategy": "drop",
    "trainer.v1.sampler.sync_refill_failed_groups": False,
    "algorithm.filter_groups.max_inflight_gen_batches": 1,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.rollout_correction.rollout_rs": None,
}

# Estimators that compare the rows of a group, and those of them that take the last output of a session alone.
GROUP_ESTIMATORS = frozenset(
    ["grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "reinforce_plus_plus_baseline", "opo", "gpg"]
)
# Estimators that scale by mean and spread of the whole batch, so that one NaN reaches every row.
WHITENING_ESTIMATORS = frozenset({"gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"})
LAST_OUTPUT_ESTIMATORS = frozenset({"grpo"})


class Choices:
    """A config as the rules read it. config: a kitlib Config, an OmegaConf config, a nested or a dotted dict, None."""

    def __init__(self, config: Any = None, mode: str | None = None) -> None:
        self.config = nested(config)
        self.is_known = config is not None
        self.mode: str = mode or self["trainer.v1.trainer_mode"]

    def __getitem__(self, key: str) -> Any:
        value = setting(self.config, key)
        return DEFAULTS.get(key) if value is None else value

    def holds(self, condition: Condition) -> bool:
        return condition.holds(self.config)

    def n(self, partition_id: str) -> int | None:
        """Sessions a prompt: rollout.n, in `val` rollout.val_kwargs.n."""
        name = "actor_rollout_ref.rollout.val_kwargs.n" if partition_id == "val" else "actor_rollout_ref.rollout.n"
        return int(self[name]) if self.is_known else None

    @property
    def prompts_a_sample(self) -> int | None:
        """Prompts that one call of `sample` waits for in `train`."""
        if not self.is_known:
            return None
        num_updates = self["trainer.v1.separate_async.parameter_sync_step"]
        return sample_size(self["data.train_batch_size"], self.mode, num_updates)

    @property
    def is_async(self) -> bool:
        return self.mode != "sync"

    @property
    def threshold(self) -> int | None:
        """Age above which a prompt is stale; None in sync mode and when switched off."""
        if not self.is_async:
            return None
        value = setting(self.config, "trainer.v1.sampler.max_off_policy_threshold", _UNSET)
        return DEFAULTS["trainer.v1.sampler.max_off_policy_threshold"] if value is _UNSET else value

    @property
    def filter_metric(self) -> str | None:
        """What groups are filtered by while sampling: "reward", a reward key, or None."""
        return self["algorithm.filter_groups.metric"] if self["algorithm.filter_groups.enable"] else None

    @property
    def estimator(self) -> str:
        return str(self["algorithm.adv_estimator"])

    @property
    def compares_groups(self) -> bool:
        return self.estimator in GROUP_ESTIMATORS

    @property
    def corrects_rollout(self) -> bool:
        """True if the difference between rollout and actor log-probs is measured in the advantage stage."""
        return self.holds(ROLLOUT_CORRECTION)

    @property
    def has_correction(self) -> bool:
        """True if something is done about that difference: weights, rejection, or bypass mode."""
        names = ("algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.rollout_rs")
        return self.holds(BYPASS) or any(self[name] for name in names)

    @property
    def scores_after_sampling(self) -> bool:
        return self.holds(REWARD_MODEL_COLOCATED)

    @property
    def distills(self) -> bool:
        return self.holds(DISTILLATION)

    def rows_a_mini_batch(self) -> int:
        """Rows of one optimizer step of the actor: ppo_mini_batch_size prompts of n rows."""
        return int(self["actor_rollout_ref.actor.ppo_mini_batch_size"]) * (self.n("train") or 1)

    def row_multiple(self, dp_size: int) -> int:
        """The batch is padded to a multiple of this: ranks, and the mini-batches of actor and critic."""
        from math import lcm

        critic = int(self["critic.ppo_mini_batch_size"]) * (self.n("train") or 1) if self.holds(CRITIC) else 1
        return lcm(dp_size, self.rows_a_mini_batch(), critic)


_UNSET = object()


def nested(config: Any) -> Any:
    """A dict with dotted keys as a nested dict; every other config as it is."""
    if not isinstance(config, Mapping) or not any(isinstance(key, str) and "." in key for key in config):
        return config
    out: dict[str, Any] = {}
    for key, value in config.items():
        *path, last = key.split(".")
        node = out
        for name in path:
            node = node.setdefault(name, {})
        node[last] = value
    return out
