"""The config of a recorded run, read from the YAML that kitlib writes: values, and the origin behind each `#`.

kitlib.config writes `train_batch_size: 32  # override`; a setting without a comment is a default. The inspector does
not import the config room (it works beside runs of other versions), so this is a reader of that text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

_SETTING = re.compile(r"^(?P<indent> *)(?P<name>[^\s:#'\"][^:]*):(?P<rest>.*)$")
_ORIGIN = re.compile(r"  # (?P<origin>(?:default|file|override|derived)\b.*)$")


class RecordedConfig:
    """Settings by dotted names, as far as a view needs them."""

    def __init__(self, text: str) -> None:
        self._tree: dict[str, Any] = yaml.safe_load(text) or {}
        self._origins = dict(_origins(text))

    def select(self, key: str, default: Any = None) -> Any:
        """Value of a dotted name, `default` if there is no such setting."""
        node: Any = self._tree
        for name in key.split("."):
            if not isinstance(node, dict) or name not in node:
                return default
            node = node[name]
        return node

    def to_flat(self) -> dict[str, Any]:
        """{dotted name: value}, in file order."""
        return dict(_flat(self._tree))

    def origin(self, key: str) -> str:
        """Where the value came from."""
        return self._origins.get(key, "default")


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _origins(text: str) -> Iterator[tuple[str, str]]:
    """(dotted name, origin) of every line that ends in one; names nest by two blanks."""
    path: list[str] = []
    for line in text.splitlines():
        if (found := _SETTING.match(line)) is None:
            continue
        del path[len(found["indent"]) // 2 :]
        path.append(found["name"])
        if (origin := _ORIGIN.search(found["rest"])) is not None:
            yield ".".join(path), origin["origin"]
