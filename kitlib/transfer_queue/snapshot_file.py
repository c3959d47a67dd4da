"""A snapshot as a file: numpy's npz with one JSON header, no pickle, so that it opens anywhere numpy is.

    header.json      {"schema": "kitlib.queue_snapshot", "version": 1, "taken_at": ..., "partitions": [...]}
                     a partition is {partition_id, keys, tags, fields, cells, consumed, writes, write_of}; key i was
                     last written by writes[write_of[i]], a write is [seconds since the epoch, who, thread] or null
    0.codes, 1.codes the matrix of every partition: int32 [num_keys, num_fields]

Tags keep what JSON knows (numbers, text, lists, dicts, null); any other value is written as its `repr`.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from kitlib.transfer_queue.actors import LastWrite
from kitlib.transfer_queue.cells import Cell
from kitlib.transfer_queue.errors import QueueFileError
from kitlib.transfer_queue.snapshot import PartitionSnapshot, QueueSnapshot

SCHEMA, VERSION = "kitlib.queue_snapshot", 1


def save_snapshot(snapshot: QueueSnapshot, path: str | Path) -> Path:
    """Write a snapshot to `path` (as it is, no suffix is added) and return the path."""
    header = {
        "schema": SCHEMA,
        "version": VERSION,
        "taken_at": snapshot.taken_at,
        "partitions": [_partition_header(partition) for partition in snapshot.partitions.values()],
    }
    text = json.dumps(header, default=repr).encode()
    codes = {f"{number}.codes": part.codes for number, part in enumerate(snapshot.partitions.values())}
    with open(path, "wb") as file:
        np.savez_compressed(file, **{"header.json": np.frombuffer(text, dtype=np.uint8)}, **codes)  # type: ignore[arg-type]
    return Path(path)


def load_snapshot(path: str | Path) -> QueueSnapshot:
    """Read a snapshot. Raises QueueFileError for a file that is truncated, foreign or of a later version."""
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(file["header.json"].tobytes())
            codes = [file[f"{number}.codes"] for number in range(len(header["partitions"]))]
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise QueueFileError(f"{path} is no queue snapshot, or a truncated one: {error}") from error
    if header.get("schema") != SCHEMA or header.get("version", 0) > VERSION:
        raise QueueFileError(
            f"{path} has schema {header.get('schema')!r} version {header.get('version')!r}; "
            f"this version reads {SCHEMA!r} up to {VERSION}"
        )
    pairs = zip(header["partitions"], codes, strict=True)
    return QueueSnapshot(header["taken_at"], {part["partition_id"]: _partition(part, matrix) for part, matrix in pairs})


def _partition_header(partition: PartitionSnapshot) -> dict[str, Any]:
    writes = {id(write): write for write in partition.last_writes}  # keys of one put share one
    place = {key: number for number, key in enumerate(writes)}
    return {
        "partition_id": partition.partition_id,
        "keys": partition.keys,
        "tags": partition.tags,
        "fields": partition.fields,
        "cells": partition.cells,
        "consumed": {task: sorted(keys) for task, keys in partition.consumed.items()},
        "writes": list(writes.values()),
        "write_of": [place[id(write)] for write in partition.last_writes],
    }


def _partition(header: dict[str, Any], codes: np.ndarray) -> PartitionSnapshot:
    writes = [None if write is None else LastWrite(*write) for write in header.get("writes", ())]
    return PartitionSnapshot(
        partition_id=header["partition_id"],
        keys=tuple(header["keys"]),
        tags=tuple(header["tags"]),
        fields=tuple(header["fields"]),
        present=codes > 0,
        codes=codes,
        cells=tuple(Cell(dtype, tuple(shape), layout, size) for dtype, shape, layout, size in header["cells"]),
        consumed={task: frozenset(keys) for task, keys in header["consumed"].items()},
        last_writes=tuple(writes[place] for place in header.get("write_of", ())),
    )
