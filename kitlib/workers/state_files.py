"""Files of a checkpoint: tensors and plain data, never code.

verl 0.9.1 writes pickles with torch.save and reads them back with weights_only=False, which runs whatever code a file
brings along. Here a file holds data only: weights are safetensors, all else is torch.save of plain containers, read
with weights_only=True. What could not be read back is refused when it is written.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kitlib.workers.errors import CheckpointError

_ATOMS = (int, float, bool, str, bytes, type(None))


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Save nested dicts, lists and tuples of tensors, numbers and text.

    Raises CheckpointError naming the entry that is something else.
    """
    _require_plain(state, path.name)
    torch.save(state, path)


def read_state(path: Path) -> dict[str, Any]:
    """What `write_state` has saved, tensors on the CPU. Raises CheckpointError for a missing, damaged or foreign
    file."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} is damaged, or holds more than data: {_first_line(error)}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, not the dict of a checkpoint")
    return state


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Save full tensors by name as safetensors."""
    from safetensors.torch import save_file

    save_file({name: value.contiguous() for name, value in weights.items()}, path, metadata={"format": "pt"})


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU. Raises CheckpointError as `read_state` does."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged, or no safetensors file: {_first_line(error)}") from error


def _require_plain(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _require_plain(key, f"a key of {where}")
            _require_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _require_plain(item, f"{where}[{number}]")
    elif type(value) not in (*_ATOMS, Tensor):
        raise CheckpointError(
            f"{where} is a {type(value).__name__}, which a checkpoint without code cannot hold: it takes tensors, "
            "numbers, text, None, and dicts, lists and tuples of them"
        )


def _missing(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is missing: copy the whole folder of a checkpoint")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0].split(". ", 1)[0] or type(error).__name__
