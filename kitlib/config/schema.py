"""What settings there are and which type each one takes, read off the shipped `ppo_trainer.yaml`.

The default tells the type: `train_batch_size: 16` takes an int. A null default takes a str or null; `TYPES` lists the
settings whose default says too little. A default of `{}` opens a group in which any name is allowed.

verl 0.9.1: trainer/config/ppo_trainer.yaml and the dataclasses of workers/config, which Hydra builds from it. Left out:
Hydra's defaults lists, `_target_`, and config groups; there is one file.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kitlib.config.errors import ConfigError

DEFAULTS_FILE = Path(__file__).with_name("ppo_trainer.yaml")
VERL_KEYS_FILE = Path(__file__).with_name("verl_0_9_1_keys.txt")

TYPES = {
    "algorithm.gdpo_reward_keys": "list | null",
    "algorithm.gdpo_reward_weights": "list | null",
    "algorithm.rollout_correction.rollout_is_threshold": "float | str",
    "algorithm.rollout_correction.rollout_rs_threshold": "float | str | null",
    "actor_rollout_ref.model.target_modules": "str | list",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "int | null",
    "actor_rollout_ref.actor.loss_scale_factor": "float | null",
    "actor_rollout_ref.actor.policy_loss.dro_beta": "float | null",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": "int | null",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": "int | null",
    "actor_rollout_ref.rollout.max_model_len": "int | null",
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": "int | null",
    "actor_rollout_ref.rollout.multi_turn.max_user_turns": "int | null",
    "critic.enable": "bool | null",
    "critic.ppo_micro_batch_size_per_gpu": "int | null",
    "critic.loss_scale_factor": "float | null",
    "trainer.v1.sampler.max_off_policy_threshold": "int | null",
    "trainer.total_training_steps": "int | null",
    "trainer.logger": "list | str",
    "trainer.max_actor_ckpt_to_keep": "int | null",
    "trainer.max_critic_ckpt_to_keep": "int | null",
    "data.train_files": "str | list",
    "data.val_files": "str | list",
    "data.gen_batch_size": "int | null",
    "data.val_batch_size": "int | null",
    "data.seed": "int | null",
    "global_profiler.steps": "list | null",
    "ray_kwargs.ray_init.num_cpus": "int | null",
    "kitlib.num_threads": "int | null",
    "kitlib.reward_timeout": "float | null",
    "kitlib.reward_error_score": "float | null",
}
_PYTHON = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict, "null": type(None)}


@lru_cache(maxsize=1)
def _parsed_defaults() -> DictConfig:
    tree = OmegaConf.load(DEFAULTS_FILE)
    assert isinstance(tree, DictConfig)
    return tree


def default_tree() -> DictConfig:
    """A fresh copy of the defaults, interpolations unresolved."""
    return copy.deepcopy(_parsed_defaults())


def leaves(tree: DictConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of all settings, in file order; an empty group is a setting of its own."""
    for name in map(str, tree):
        node = tree._get_node(name)
        if isinstance(node, DictConfig) and len(node) > 0 and f"{prefix}{name}" not in _open_groups():
            yield from leaves(node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@lru_cache(maxsize=1)
def _open_groups() -> frozenset[str]:
    """Groups that are empty by default: names in them are the user's own."""

    def walk(tree: DictConfig, prefix: str) -> Iterator[str]:
        for name in map(str, tree):
            node = tree._get_node(name)
            if isinstance(node, DictConfig):
                yield from walk(node, f"{prefix}{name}.") if len(node) else (f"{prefix}{name}",)

    return frozenset(walk(default_tree(), ""))


@lru_cache(maxsize=1)
def known_keys() -> dict[str, str]:
    """Every setting and the types it takes, such as {"data.seed": "int | null"}."""
    tree = default_tree()
    known = {}
    for key in leaves(tree):
        value = OmegaConf.select(tree, key)
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value)
        known[key] = TYPES.get(key) or ("str | null" if value is None else type(value).__name__)
    return known


def open_group_of(key: str) -> str | None:
    """The group `key` lies in (or is) in which any name is allowed."""
    return next((group for group in _open_groups() if key == group or key.startswith(group + ".")), None)


def is_group(key: str) -> bool:
    """True for a name that has settings below it."""
    return any(known.startswith(key + ".") for known in known_keys())


def fit(key: str, value: Any) -> Any:
    """`value` as the type that `key` takes (an int where a float is wanted becomes one). Raises ConfigError."""
    wanted = known_keys()[key].split(" | ")
    for name in wanted:
        kind = _PYTHON[name]
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
    if "float" in wanted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise ConfigError(f"{key}={value!r} is of type {type(value).__name__}: expected {' or '.join(wanted)}")


def near_names(key: str) -> list[str]:
    """Settings that `key` may stand for: the same last part under another group first, then similar spelling."""
    known = list(known_keys())
    by_tail = [name for name in known if name.endswith(("." + key, "." + key.rsplit(".", 1)[-1]))]
    by_spelling = difflib.get_close_matches(key, known, n=3, cutoff=0.8)
    tails: dict[str, str] = {}
    for name in known:
        tails.setdefault(name.rsplit(".", 1)[-1], name)
    by_last_part = [tails[tail] for tail in difflib.get_close_matches(key.rsplit(".", 1)[-1], tails, n=2, cutoff=0.8)]
    return list(dict.fromkeys((*by_spelling, *by_tail, *by_last_part)))[:3]


@lru_cache(maxsize=1)
def verl_keys() -> frozenset[str]:
    """Every setting of verl 0.9.1."""
    lines = VERL_KEYS_FILE.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def explain_unknown(key: str) -> str:
    """One sentence on a name that is no setting here."""
    if key in verl_keys() or any(name.startswith(key + ".") for name in verl_keys()):
        return f"{key} is a setting of verl 0.9.1 that kitlib has no use for: leave it out"
    near = near_names(key)
    hint = (
        f": did you mean {' or '.join(near)}?"
        if near
        else f": see `kitlib config` or {DEFAULTS_FILE.name} for all names"
    )
    return f"{key} is no setting of kitlib{hint}"
