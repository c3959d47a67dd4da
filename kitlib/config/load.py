"""load_config: defaults, then a file, then overrides; resolved, typed and checked.

verl 0.9.1: Hydra's composition in main_ppo.py, and validate_config in utils/config.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kitlib.config import checks
from kitlib.config.config import Config, Origin
from kitlib.config.errors import ConfigError
from kitlib.config.schema import default_tree, fit, known_keys, leaves, open_group_of
from kitlib.config.sources import read_file, read_overrides
from kitlib.paths import data_path

logger = logging.getLogger(__name__)


def load_config(overrides: Sequence[str] | Mapping[str, Any] = (), file: str | Path | None = None) -> Config:
    """The settings of a run: the shipped defaults, changed by a YAML `file` and then by `overrides`.

    `overrides` are words such as "data.train_batch_size=32" (values in YAML) or a mapping with dotted or nested names.
    Raises ConfigError that names the setting, the value, what was expected and, for an unknown name, similar ones.
    """
    tree, origins = default_tree(), dict[str, Origin]()
    if file is not None:
        _apply(tree, origins, read_file(file), Origin("file", str(file)))
    _apply(tree, origins, read_overrides(overrides), Origin("override"))
    _fill_in(tree, origins)
    _note_followers(tree, origins)
    values = {key: _resolve(tree, key, origins) for key in known_keys()}
    _force_single_fetches(values, origins)
    checks.require_consistent(values)
    for key, value in values.items():
        OmegaConf.update(tree, key, value, merge=False)
    return Config(tree, origins)


def _apply(tree: DictConfig, origins: dict[str, Origin], values: Mapping[str, Any], origin: Origin) -> None:
    for key, value in values.items():
        group = open_group_of(key)
        if group == key and not isinstance(value, Mapping):
            raise ConfigError(f"{key}={value!r} ({origin}): expected a group, such as {key}.name=value")
        OmegaConf.update(tree, key, value, merge=False, force_add=group is not None)
        origins[group or key] = origin


def _fill_in(tree: DictConfig, origins: dict[str, Origin]) -> None:
    """Replace what stands for something found on this machine, before other settings follow it."""
    raw: Any = OmegaConf.to_container(tree, resolve=False)
    if raw["kitlib"]["data_dir"] is None:
        tree.kitlib.data_dir = str(data_path("mult_tool").parent)
        origins["kitlib.data_dir"] = Origin("derived", "shipped with the package")
    if raw["trainer"]["device"] == "auto":
        import torch

        tree.trainer.device = "cuda" if torch.cuda.is_available() else "cpu"
        found = "this machine has a GPU" if torch.cuda.is_available() else "no GPU found"
        origins["trainer.device"] = Origin("derived", found)


def _note_followers(tree: DictConfig, origins: dict[str, Origin]) -> None:
    raw = OmegaConf.to_container(tree, resolve=False)
    for key in leaves(tree):
        node: Any = raw
        for name in key.split("."):
            node = node[name]
        if key not in origins and isinstance(node, str) and "${" in node:
            origins[key] = Origin("derived", f"follows {node[2:-1]}" if node.endswith("}") else node)


def _resolve(tree: DictConfig, key: str, origins: Mapping[str, Origin]) -> Any:
    """The plain value of a setting, of the type it takes."""
    where = f" ({origins[key]})" if key in origins else ""
    try:
        value = OmegaConf.select(tree, key)
        value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except (OmegaConfBaseException, RecursionError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"{key}{where} cannot be resolved: {reason}") from error
    try:
        return fit(key, value)
    except ConfigError as error:
        raise ConfigError(f"{error}{where}") from None


def _force_single_fetches(values: dict[str, Any], origins: dict[str, Origin]) -> None:
    reason, asked = checks.fetches_single_prompts(values), values["data.gen_batch_size"]
    if reason is None or asked == 1:
        return
    if asked is not None:
        logger.warning("data.gen_batch_size=%s becomes 1: with %s prompts are fetched one by one", asked, reason)
    values["data.gen_batch_size"] = 1
    origins["data.gen_batch_size"] = Origin("derived", reason)
