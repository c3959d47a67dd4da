"""A recording on disk: a folder of JSON lines and numpy files, no pickle, readable while it grows.

    recording.json        schema, version, when it began, versions of the packages
    log/000000.jsonl      {"event": ..} one queue call, {"mark": ..} a border of a stage; cut into segments
    snapshots/000000.npz  the queue at a mark (kitlib.transfer_queue.snapshot_file)
    values/000000.safetensors   the columns that were asked for, at the same mark
    config.yaml           the resolved config, if there is one
    failure.txt, tasks.txt      written when the run failed: the error with its traceback, the background tasks
    doctor.json           what the doctor found at that moment, if anything

Together with the last lines of the log this is the post-mortem: the folder can be copied to another machine and opened
there without Ray, a GPU or the run.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tensordict import TensorDict

from kitlib.errors import KitError
from kitlib.transfer_queue import QueueSnapshot, jagged, lengths

SCHEMA, VERSION = "kitlib.recording", 1
HEADER, LOG, SNAPSHOTS, VALUES = "recording.json", "log", "snapshots", "values"
CONFIG, FAILURE, TASKS, DOCTOR = "config.yaml", "failure.txt", "tasks.txt", "doctor.json"
PART = re.compile(r"recording(-\d+)?")
PACKAGES = ("kitlib", "verl", "torch", "tensordict", "transformers", "TransferQueue", "ray", "vllm", "numpy")


class RecordingError(KitError):
    """A folder that is no recording, or one that cannot be read or written."""


def numbered(folder: Path, kind: str, number: int) -> Path:
    """The n-th file of a kind."""
    suffix = {LOG: "jsonl", SNAPSHOTS: "npz", VALUES: "safetensors"}[kind]
    return folder / kind / f"{number:06d}.{suffix}"


def write_header(folder: Path, began: float) -> None:
    """recording.json. Raises RecordingError if the folder holds a recording already."""
    if (folder / HEADER).exists():
        raise RecordingError(f"{folder} holds a recording already: name another folder or remove it")
    for kind in (LOG, SNAPSHOTS, VALUES):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    header = {"schema": SCHEMA, "version": VERSION, "began": began, "versions": versions()}
    (folder / HEADER).write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")


def read_header(folder: Path) -> dict[str, Any]:
    """recording.json. Raises RecordingError for another folder or a later version."""
    try:
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordingError(f"{folder} is no recording: {HEADER} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RecordingError(f"{folder} is no recording: {HEADER} is no JSON ({error})") from error
    known = isinstance(header, dict) and header.get("schema") == SCHEMA
    if not known or header.get("version", 0) > VERSION:
        raise RecordingError(f"{folder}: this version reads {SCHEMA!r} up to {VERSION}; {HEADER} says something else")
    return header


def parts_of(folder: Path) -> list[Path]:
    """The recordings of one run, oldest first: a run that goes on leaves recording, recording-1, .. in its folder."""
    if not PART.fullmatch(folder.name):
        return [folder]
    places = folder.parent.glob("recording*")
    found = [place for place in places if PART.fullmatch(place.name) and (place / HEADER).is_file()]
    return sorted(found, key=lambda place: read_header(place)["began"])


def versions() -> dict[str, str]:
    """Python, platform and the packages that matter, as far as they are installed."""
    found = {"python": sys.version.split()[0], "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# ------------------------------------------------------------------------------------------------------------- values


def save_values(queue: Any, snapshot: QueueSnapshot, fields: Sequence[str], path: Path) -> bool:
    """Write the tensor columns of `fields` that the snapshot shows; False if there is none. Objects are left out."""
    tensors: dict[str, torch.Tensor] = {}
    index: dict[str, dict[str, list[str]]] = {}
    for partition in snapshot.partitions.values():
        for field in fields:
            keys = [key for key in partition.keys if partition.has(key, field)]
            column = _read_column(queue, partition.partition_id, keys, field)
            if column is None:
                continue
            name = f"{partition.partition_id}/{field}"
            index.setdefault(partition.partition_id, {})[field] = keys
            if column.is_nested:
                tensors[f"{name}/lengths"] = lengths(column)
                column = column.values()
            tensors[name] = column.contiguous()
    if tensors:
        save_file(tensors, path, metadata={"index": json.dumps(index)})
    return bool(tensors)


def _read_column(queue: Any, partition_id: str, keys: list[str], field: str) -> torch.Tensor | None:
    """A dense or one-dimensional jagged column of exactly these keys, None for anything else."""
    if not keys:
        return None
    try:
        data = queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=[field])
    except ValueError:  # every key was cleared since the snapshot
        return None
    column = data.get(field, None)
    if not isinstance(column, torch.Tensor) or len(data) != len(keys):
        return None
    return None if column.is_nested and column.values().dim() > 1 else column.detach().cpu()


def load_values(path: Path, partition_id: str, keys: Sequence[str], fields: Sequence[str] | None) -> TensorDict:
    """The recorded columns of some rows, in the order of `keys`. As in the store, a column that one row lacks is left
    out."""
    try:
        with safe_open(str(path), framework="pt") as file:
            index = json.loads(file.metadata()["index"]).get(partition_id, {})
            columns = {}
            for field, known in index.items():
                if (fields is None or field in fields) and set(keys) <= set(known):
                    columns[field] = _rows(file, f"{partition_id}/{field}", known, keys)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{path} holds no recorded values, or is truncated: {error}") from error
    return TensorDict(columns, batch_size=[len(keys) if columns else 0])


def _rows(file: Any, name: str, known: Sequence[str], keys: Sequence[str]) -> torch.Tensor:
    values = file.get_tensor(name)
    position = {key: row for row, key in enumerate(known)}
    if f"{name}/lengths" not in file.keys():
        return values[[position[key] for key in keys]]
    rows = values.split(file.get_tensor(f"{name}/lengths").tolist())
    return jagged([rows[position[key]] for key in keys])
