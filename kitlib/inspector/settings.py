"""Look up one config key in whatever the reader hands in: a kitlib Config, an OmegaConf config, a nested dict, or
nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ABSENT = object()


def setting(config: Any, key: str, default: Any = None) -> Any:
    """Value of a dotted key, `default` where the config is None or does not have it; an explicit null is None."""
    if hasattr(type(config), "select"):
        return config.select(key, default)
    node = config
    for name in key.split("."):
        node = node.get(name, _ABSENT) if isinstance(node, Mapping) else getattr(node, name, _ABSENT)
        if node is _ABSENT:
            return default
    return node


def prompts_a_sample(config: Any) -> int | None:
    """Prompts that one call of `sample` asks for in `train`; None where the config names no data.train_batch_size.

    In separate_async a step samples parameter_sync_step times (4 where the config is silent), an equal part each time.
    """
    train_batch_size = setting(config, "data.train_batch_size")
    if train_batch_size is None:
        return None
    num_updates = setting(config, "trainer.v1.separate_async.parameter_sync_step") or 4
    return sample_size(train_batch_size, setting(config, "trainer.v1.trainer_mode") or "sync", num_updates)


def sample_size(train_batch_size: int, trainer_mode: str, parameter_sync_step: int) -> int:
    """Prompts that one call of `sample` asks for."""
    num_samples = int(parameter_sync_step) if trainer_mode == "separate_async" else 1
    return max(1, int(train_batch_size) // num_samples)
