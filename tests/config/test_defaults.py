"""The shipped defaults: names and default values against verl 0.9.1's, and that they load, typed and consistent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from kitlib.config import Config, load_config
from kitlib.config.schema import DEFAULTS_FILE, TYPES, known_keys, verl_keys
from kitlib.contract import STAGES, SWITCHES

# Read by verl, though its ppo_trainer.yaml does not name them.
ONLY_IN_VERLS_DATACLASSES = {
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "algorithm.gdpo_reward_keys",
    "algorithm.gdpo_reward_weights",
    "reward.custom_reward_function.reward_kwargs",
}
VERL_DEFAULTS: dict[str, Any] = json.loads(Path(__file__).with_name("verl_0_9_1_defaults.json").read_text())
COMMENT = re.compile(r"verl: (?P<value>.+?)\)?$")


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config()


def documented_verl_values() -> dict[str, str]:
    """{dotted name: the X of its comment `# verl: X`}, read off the YAML by indentation."""
    found, path = {}, []
    for line in DEFAULTS_FILE.read_text().splitlines():
        setting = re.match(r"(?P<indent> *)(?P<name>[\w.]+):(?P<rest>.*)", line)
        if setting is None:
            continue
        path = [*path[: len(setting["indent"]) // 2], setting["name"]]
        comment = COMMENT.search(setting["rest"].partition("  # ")[2])
        if comment:
            found[".".join(path)] = comment["value"]
    return found


def plain(text: str) -> Any:
    value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
    return value["value"]  # type: ignore[index,call-overload]


def test_no_setting_outside_the_group_kitlib_is_invented() -> None:
    ours = {key for key in known_keys() if not key.startswith("kitlib.")}
    assert ours - verl_keys() == ONLY_IN_VERLS_DATACLASSES


def test_a_default_that_differs_from_verls_says_so_and_says_what_verls_is(config: Config) -> None:
    marked = documented_verl_values()
    followers = {key for key in known_keys() if config.origin(key).kind == "derived" and key not in marked}
    differing = {key for key, value in VERL_DEFAULTS.items() if config.select(key) != value}
    # A setting that follows another differs because that one does.
    assert differing - followers <= set(marked)
    for key, text in marked.items():
        told = plain(text.removesuffix(", must be set"))
        assert told == VERL_DEFAULTS[key], f"{key}: the comment says verl: {text}"
        assert key in differing, f"{key} is marked as different from verl's, and is not"


def test_every_setting_that_the_contract_reasons_with_exists() -> None:
    used = set(SWITCHES) | {key for stage in STAGES.values() for key in stage.switches}
    assert used <= set(known_keys())


def test_table_of_types_names_settings_only_and_only_where_needed() -> None:
    assert set(TYPES) <= set(known_keys())


def test_defaults_run_the_demo_on_one_process(config: Config) -> None:
    assert config.actor_rollout_ref.rollout.n == 8
    assert config.data.train_batch_size == 16
    assert config.algorithm.adv_estimator == "grpo"
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "tool_agent"
    assert config.trainer.device in ("cpu", "cuda")  # never auto once loaded


def test_default_paths_exist(config: Config) -> None:
    for key in ("data.train_files", "data.val_files", "actor_rollout_ref.model.path"):
        assert Path(config.select(key)).exists(), key
