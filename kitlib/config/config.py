"""The resolved settings of one run: read-only, typed, each with where it came from.

verl 0.9.1 hands an OmegaConf DictConfig around; attribute paths (`config.actor_rollout_ref.rollout.n`) are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from kitlib.config import checks, printing
from kitlib.config.errors import ConfigError, UnknownKeyError
from kitlib.config.schema import explain_unknown, fit, known_keys, open_group_of

_MISSING = object()


@dataclass(frozen=True)
class Origin:
    """Where a value came from; `detail` is the file, or the reason of a derived value."""

    kind: Literal["default", "file", "override", "derived"]
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


DEFAULT = Origin("default")


class Config:
    """Settings by verl's dotted names. Made by `load_config`."""

    def __init__(self, tree: DictConfig, origins: Mapping[str, Origin]) -> None:
        """`tree` is resolved; `origins` names the settings that are not plain defaults."""
        OmegaConf.set_struct(tree, True)
        OmegaConf.set_readonly(tree, True)
        self._tree = tree
        self._origins = dict(origins)
        self._selected: dict[str, Any] = {}  # what `select` has found: stages ask for the same few names in every step

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look for these before _tree exists
            raise AttributeError(name)
        if name not in self._tree:
            raise UnknownKeyError(explain_unknown(name))
        return self._tree[name]

    def __contains__(self, key: str) -> bool:
        return key in known_keys() or OmegaConf.select(self._tree, key, default=_MISSING) is not _MISSING

    def select(self, key: str, default: Any = _MISSING) -> Any:
        """Value of a dotted name; `default` if there is no such setting, and UnknownKeyError if none is given."""
        if key in self._selected:
            return self._selected[key]
        value = OmegaConf.select(self._tree, key, default=_MISSING)
        if value is not _MISSING:
            self._selected[key] = value
            return value
        if default is _MISSING:
            raise UnknownKeyError(explain_unknown(key))
        return default

    def origin(self, key: str) -> Origin:
        """Where the value of a setting came from."""
        if key not in self:
            raise UnknownKeyError(explain_unknown(key))
        return self._origins.get(key) or self._origins.get(open_group_of(key) or "", DEFAULT)

    def update(self, key: str, value: Any, reason: str) -> None:
        """Set what only shows while a run is set up, such as the number of steps; `reason` becomes the origin.

        Values that follow `key` keep what they were resolved to. Raises ConfigError for a value that does not fit.
        """
        if key not in known_keys():
            raise UnknownKeyError(explain_unknown(key))
        checks.require_consistent({**self.to_flat(), key: fit(key, value)})
        with read_write(self._tree), open_dict(self._tree):
            OmegaConf.update(self._tree, key, fit(key, value), merge=False)
        self._selected.clear()
        self._origins[key] = Origin("derived", reason)

    def to_flat(self) -> dict[str, Any]:
        """{dotted name: plain value} of all settings, in file order."""
        return {key: _plain(OmegaConf.select(self._tree, key)) for key in known_keys()}

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dicts, lists and scalars."""
        plain = OmegaConf.to_container(self._tree)
        assert isinstance(plain, dict)
        return {str(name): value for name, value in plain.items()}

    def to_yaml(self) -> str:
        """YAML that `load_config(file=...)` takes back; a comment marks each value that is no plain default."""
        return printing.to_yaml(self.to_dict(), {key: str(origin) for key, origin in self._origins.items()})

    def table(self, only_changed: bool = False) -> Any:
        """A rich Table of name, value and origin, grouped as verl groups them."""
        rows = {key: (value, str(self.origin(key))) for key, value in self.to_flat().items()}
        if only_changed:
            rows = {key: row for key, row in rows.items() if self.origin(key).kind in ("file", "override")}
        return printing.table(rows)

    def __str__(self) -> str:
        return self.to_yaml()

    def __repr__(self) -> str:
        changed = [
            f"{key}={value!r}" for key, value in self.to_flat().items() if self.origin(key).kind in ("file", "override")
        ]
        return f"Config({', '.join(changed) or 'defaults'})"


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


__all__ = ["DEFAULT", "Config", "ConfigError", "Origin"]
