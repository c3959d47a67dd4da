"""Where settings come from besides the defaults: a YAML file, `key=value` words, a mapping. All become {name: value}.

verl 0.9.1: Hydra's command line (main_ppo.py). The same words work: `data.train_batch_size=32`, values in YAML,
`${...}` follows another key, `+key=value` where a group is open. Left out: `~key`, config groups, multirun.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kitlib.config.errors import ConfigError, UnknownKeyError
from kitlib.config.schema import explain_unknown, is_group, known_keys, open_group_of

_SHOWN = 10


def read_file(path: str | Path) -> dict[str, Any]:
    """Settings of a YAML file that is nested as `ppo_trainer.yaml` is."""
    try:
        tree = OmegaConf.load(Path(path).expanduser())
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(f"config file {path} is no YAML: {' '.join(str(error).split())}") from error
    nested = OmegaConf.to_container(tree, resolve=False)
    if not isinstance(nested, dict):
        raise ConfigError(
            f"config file {path} holds a list: expected groups of settings, such as `data: {{train_batch_size: 32}}`"
        )
    return flatten({str(name): value for name, value in nested.items()}, f" (in {path})")


def read_overrides(overrides: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Settings of words `key=value`, or of a mapping with dotted or nested names. A later word wins."""
    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r} is one text: expected a list, such as [{overrides!r}]")
    if isinstance(overrides, Mapping):
        return flatten(overrides)
    found: dict[str, Any] = {}
    for word in overrides:
        found |= flatten(dict((_parse(word),)))
    return found


def _parse(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ConfigError(f"{word!r} is no override: expected key=value, such as data.train_batch_size=32")
    if name.startswith("+"):
        name = name.lstrip("+")
        if open_group_of(name) is None and name not in known_keys():
            raise UnknownKeyError(f"{explain_unknown(name)} (+ adds names only in groups that are empty by default)")
    try:
        # OmegaConf's reader takes 1e-6 for a number, plain YAML 1.1 does not.
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{word!r}: the value is no YAML: {' '.join(str(error).split())}") from error
    assert isinstance(value, dict)
    return name, value["value"]


def flatten(nested: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """{dotted name: value} of a nested mapping. Raises UnknownKeyError that lists every name which is no setting."""
    found: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in _walk(nested, ""):
        if name in known_keys() or open_group_of(name):
            found[name] = value
        elif is_group(name):
            raise ConfigError(f"{name}={value!r}{where}: {name} is a group of settings, not a setting")
        else:
            unknown.append(name)
    if unknown:
        lines = [explain_unknown(name) for name in unknown[:_SHOWN]]
        more = f"\n... and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise UnknownKeyError("\n".join(line + where for line in lines) + more)
    return found


def _walk(nested: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and is_group(key) and key not in known_keys():
            yield from _walk(value, f"{key}.")
        else:
            yield key, dict(value) if isinstance(value, Mapping) else value
