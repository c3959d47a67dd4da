"""Save a queue to a folder and load it again: keys, tags, fields and values of all partitions.

    folder/
      metadata.json            {"schema", "version", "state": "state-3f2a.pt", "num_bytes", "sha256",
                                "storage_saved", "user_metadata"}
      state-3f2a.pt            the rows, written by torch.save, read back with weights_only=True: data, no code

The state is written under a new name and metadata.json is replaced last, in one step that either happens or does not.
Whoever is killed in between leaves the old metadata.json, which names the old state. Reading checks size and hash, so
a truncated or a foreign file is an error and not a half-filled queue.

TransferQueue 0.1.11: interface.py, save_checkpoint and load_checkpoint (pickle files in a folder that is renamed).
What runs is not saved: event logs, waiting readers, consumption by samplers.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kitlib.transfer_queue.blocks import Block, DenseBlock, JaggedBlock, ListBlock
from kitlib.transfer_queue.controller import Controller
from kitlib.transfer_queue.errors import QueueFileError, QueueTypeError
from kitlib.transfer_queue.storage import StorageUnits
from kitlib.transfer_queue.values import ATOMS

SCHEMA, VERSION = "kitlib.queue_checkpoint", 1
METADATA = "metadata.json"
ARRAY = "__numpy__"  # a numpy array travels as {ARRAY: tensor}

State = dict[str, dict[str, Any]]  # partition -> {"keys": [...], "tags": [...], "columns": {field: ...}}


def write_checkpoint(folder: str | Path, state: State, user_metadata: dict[str, Any] | None) -> None:
    """Write a state to a folder, which is made if needed; the checkpoint that is there stays valid until the new one
    is.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"state-{uuid.uuid4().hex[:12]}.pt"
    with open(folder / name, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    metadata = {
        "schema": SCHEMA,
        "version": VERSION,
        "state": name,
        "num_bytes": (folder / name).stat().st_size,
        "sha256": _hash(folder / name),
        "storage_saved": True,  # as the package's metadata.json says
        "user_metadata": user_metadata or {},
    }
    replace_text(folder / METADATA, json.dumps(metadata, indent=2))
    for old in folder.glob("state-*.pt"):
        if old.name != name:
            old.unlink()


def read_checkpoint(folder: str | Path) -> tuple[State, dict[str, Any]]:
    """(state, user_metadata) of a folder. FileNotFoundError if there is none, QueueFileError if it is damaged or
    foreign.
    """
    metadata = _read_metadata(Path(folder) / METADATA)
    path = Path(folder) / metadata["state"]
    if not path.exists():
        raise QueueFileError(f"{path} is gone, though {METADATA} names it: copy the whole folder of a checkpoint")
    if path.stat().st_size != metadata["num_bytes"] or _hash(path) != metadata["sha256"]:
        raise QueueFileError(f"{path} is truncated or damaged: {path.stat().st_size} of {metadata['num_bytes']} bytes")
    try:
        return torch.load(path, weights_only=True), metadata["user_metadata"]
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise QueueFileError(f"{path} holds something that is no data of a queue: {error}") from error


def references(controller: Controller, storage: StorageUnits) -> State:
    """What is to be saved, by reference: no value is copied, so the caller's lock is held for a moment only."""
    state: State = {}
    for name, partition in controller.partitions.items():
        indexes = list(partition.indexes.values())
        columns = {}
        for field, column in controller.columns.items():
            rows = np.flatnonzero(controller.codes[indexes, column]).tolist()
            if rows:
                columns[field] = (rows, *storage.get([indexes[row] for row in rows], [field])[field])
        state[name] = {
            "keys": list(partition.indexes),
            "tags": list(partition.copy_tags().values()),
            "columns": columns,
        }
    return state


def pack(state: State) -> State:
    """The referenced values as few tensors as possible, in terms that a file without code can hold."""
    return {
        name: {
            "keys": part["keys"],
            "tags": [_plain(tag, f"the tag of {key!r}") for key, tag in zip(part["keys"], part["tags"], strict=True)],
            "columns": {field: _pack_rows(field, *column) for field, column in part["columns"].items()},
        }
        for name, part in state.items()
    }


def restore(state: State, controller: Controller, storage: StorageUnits) -> None:
    """Fill an empty controller and empty storage units."""
    for name, part in state.items():
        indexes, _ = controller.register(name, part["keys"])
        controller.merge_tags(name, part["keys"], [_unplain(tag) for tag in part["tags"]])
        for field, column in part["columns"].items():
            own = [indexes[row] for row in column["rows"]]
            blocks = {field: _unpack_rows(column)}
            storage.put(own, blocks)
            controller.publish(own, blocks)


def _pack_rows(field: str, rows: list[int], blocks: list[Block], numbers: list[int]) -> dict[str, Any]:
    """One column: which rows of the partition have the field, and their values."""
    values = [block.row(number) for block, number in zip(blocks, numbers, strict=True)]
    if all(isinstance(value, torch.Tensor) for value in values) and len({value.dtype for value in values}) == 1:
        shapes = {tuple(value.shape) for value in values}
        if len(shapes) == 1:
            return {"rows": rows, "kind": "dense", "values": torch.stack(values)}
        if all(len(shape) == 1 for shape in shapes):
            offsets = np.cumsum([0, *(len(value) for value in values)]).tolist()
            return {"rows": rows, "kind": "jagged", "values": torch.cat(values), "offsets": offsets}
    return {"rows": rows, "kind": "list", "values": [_plain(value, f"field {field!r}") for value in values]}


def _unpack_rows(column: dict[str, Any]) -> Block:
    """The block of a packed column."""
    if column["kind"] == "dense":
        return DenseBlock(column["values"])
    if column["kind"] == "jagged":
        return JaggedBlock(column["values"], column["offsets"])
    return ListBlock([_unplain(value) for value in column["values"]])


def _plain(value: Any, where: str) -> Any:
    """The value in terms that a file without code can hold. QueueTypeError names what it cannot."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if isinstance(value, torch.Tensor):
        return value.clone()  # a view would drag its whole block into the file
    if kind is dict:
        return {_plain(key, where): _plain(item, where) for key, item in value.items()}
    if kind is list:
        return [_plain(item, where) for item in value]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return {ARRAY: torch.from_numpy(np.array(value)), "scalar": isinstance(value, np.generic)}
    raise QueueTypeError(
        f"{where} holds a {kind.__name__}, which a checkpoint cannot store: it takes numbers, text, bytes, None, "
        "lists, dicts, tensors and numeric numpy arrays"
    )


def _unplain(value: Any) -> Any:
    if isinstance(value, dict):
        if ARRAY in value:
            array = value[ARRAY].numpy()
            return array[()] if value["scalar"] else array
        return {key: _unplain(item) for key, item in value.items()}
    return [_unplain(item) for item in value] if isinstance(value, list) else value


def _read_metadata(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint of a queue in {path.parent}: {path.name} is missing")
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        is_ours = metadata["schema"] == SCHEMA and metadata["version"] <= VERSION
    except (ValueError, KeyError, TypeError) as error:
        raise QueueFileError(f"{path} is no metadata of a queue checkpoint") from error
    if not is_ours:
        raise QueueFileError(
            f"{path} has schema {metadata['schema']!r} version {metadata['version']}; this version reads "
            f"{SCHEMA!r} up to {VERSION}"
        )
    return metadata


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, whatever happens in between."""
    draft = path.with_suffix(".tmp")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
