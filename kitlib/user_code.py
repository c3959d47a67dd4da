"""Loads the Python file that a config key names: reward functions, tools, agent loops.

verl 0.9.1: utils/import_utils.py, load_extern_object and resolve_config_path. A path is looked for as it stands, then
in the working directory, then beside the kitlib package; `pkg://some.module` names an importable module instead of a
file.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from kitlib.errors import KitError

_PACKAGE_SCHEME = "pkg://"
_BESIDE_PACKAGE = Path(__file__).resolve().parent.parent


class UserCodeError(KitError):
    """A file or a name that a config key asks for and that cannot be loaded."""


def resolve_user_path(path: str | Path, config_key: str) -> Path:
    """The absolute path of a file named by `config_key`. Raises UserCodeError listing where it was looked for."""
    candidates = [Path(path).expanduser()]
    if not candidates[0].is_absolute():
        candidates = [root / candidates[0] for root in (Path.cwd(), _BESIDE_PACKAGE)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    raise UserCodeError(f"{config_key}={path}: no such file (looked for {' and '.join(map(str, candidates))})")


def load_user_module(path: str | Path, config_key: str) -> ModuleType:
    """Import the file or `pkg://` module that `config_key` names; a file is executed at every call, so edits count.

    Raises UserCodeError naming key, file and cause.
    """
    try:
        if str(path).startswith(_PACKAGE_SCHEME):
            return importlib.import_module(str(path)[len(_PACKAGE_SCHEME) :])
        return _import_file(resolve_user_path(path, config_key))
    except UserCodeError:
        raise
    except Exception as error:
        raise UserCodeError(f"{config_key}={path}: importing it raised {type(error).__name__}: {error}") from error


def load_user_object(path: str | Path, name: str, config_key: str) -> Any:
    """The object called `name` in the file that `config_key` names."""
    module = load_user_module(path, config_key)
    if not hasattr(module, name):
        own = sorted(key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__)
        raise UserCodeError(f"{config_key}={path}: it defines no {name!r}, only {', '.join(own) or 'nothing'}")
    return getattr(module, name)


def _import_file(path: Path) -> ModuleType:
    name = "_kitlib_user_" + "_".join(path.with_suffix("").parts[1:]).replace(".", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
