"""Look up one config key in whatever the reader hands in: a kitlib Config, an OmegaConf config, a nested dict, or
nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def setting(config: Any, key: str, default: Any = None) -> Any:
    """Value of a dotted key, `default` where the config is None or does not have it."""
    if hasattr(type(config), "select"):
        return config.select(key, default)
    node = config
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else getattr(node, name, None)
        if node is None:
            return default
    return node
