"""The case files beside this module: how to list them, and how to bring a store into the state of one.

A case is one state of the queue with a known diagnosis (format: kitlib/inspector/doctor/case_file.py). Each entry of a
case is one put, in the order of the file; three need a sequence of their own, named by `how`. `cases` holds situations
that were reported in public, `more_cases` states made up for the kinds that none of them has, and for what was once
missed or a false alarm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from kitlib.inspector.doctor.case_file import read_case, value_of

FOLDER = Path(__file__).parent / "cases"
PATHS = sorted(FOLDER.glob("case_*.json"))
CASES = {path.stem: read_case(path) for path in PATHS}
MORE = {path.stem: read_case(path) for path in sorted((FOLDER.parent / "more_cases").glob("case_*.json"))}
BUILDABLE = [name for name, raw in CASES.items() if raw.get("buildable", True)]
FAULTY = [name for name, raw in CASES.items() if not raw.get("negative")]
HEALTHY = [name for name, raw in CASES.items() if raw.get("negative")]


def put(raw: dict[str, Any], tq: Any, picture: str = "partitions") -> None:
    """Bring an empty store into this state ("partitions"), or into the one before ("before")."""
    for partition_id, entries in raw[picture].items():
        if not entries:  # known to the store, but empty
            tq.kv_put(key="tmp", partition_id=partition_id, tag={"status": "tmp"})
            tq.kv_clear(keys=["tmp"], partition_id=partition_id)
        for entry in entries:
            _put(tq, partition_id, entry)


def _put(tq: Any, partition_id: str, entry: dict[str, Any]) -> None:
    key, tag, how = entry["key"], entry["tag"], entry.get("how")
    if how == "late_tag":  # the marker is cleared, then a status arrives
        tq.kv_put(key=key, partition_id=partition_id, tag={"is_prompt": True, "status": "running", "global_steps": 0})
        tq.kv_clear(keys=[key], partition_id=partition_id)
        tq.kv_put(key=key, partition_id=partition_id, tag=tag)
    elif how == "failed_put":  # two tags for one key: refused after the key was registered
        _must_fail(tq, [key], partition_id, [{"status": "success"}] * 2)
    elif how == "duplicate_put":  # the key twice: refused, the last tag stays
        _must_fail(tq, [key, key], partition_id, [{**tag, "status": "first"}, tag])
    else:
        tq.kv_batch_put(keys=[key], partition_id=partition_id, fields=_columns(entry["fields"]), tags=[tag])


def _columns(fields: dict[str, Any]) -> TensorDict | None:
    """One row of batch size 1; None for a key that only has a tag."""
    if not fields:
        return None
    columns = {name: _column(field) for name, field in fields.items()}
    return TensorDict(columns, batch_size=[1])


def _column(field: dict[str, Any]) -> Any:
    value = value_of(field)
    if field["dtype"] == "object":
        return NonTensorStack(NonTensorData(value))
    return torch.tensor(value, dtype=getattr(torch, field["dtype"])).unsqueeze(0)


def _must_fail(tq: Any, keys: list[str], partition_id: str, tags: list[dict[str, Any]]) -> None:
    try:
        tq.kv_batch_put(keys=keys, partition_id=partition_id, tags=tags)
    except ValueError:
        return
    raise AssertionError("the store took a put that TransferQueue 0.1.11 refuses")
