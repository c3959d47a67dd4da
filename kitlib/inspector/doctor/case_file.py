"""Case files: a state of the queue in one JSON file, with what a good diagnosis of it says.

verl 0.9.1 has no counterpart. A case is read into a `Situation` without a store, so that states which today's stores
cannot hold any more can be examined too. The format:

    id, stage, mode, config (dotted verl keys), global_steps
    partitions, before   {partition: [{"key", "tag", "fields"}]} in the order of kv_list()
    batch, request       {"partition_id", "keys", "fields"}        batches   [{.., "extra_info"}]
    columns, writes, unreadable, context                           see kitlib.inspector.doctor.situation
    a field is {"dtype", "layout": "row", "shape", "values" | "fill" | "arange"} or {"dtype": "object", "object": ...}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kitlib.errors import KitError
from kitlib.inspector.doctor.choices import Choices
from kitlib.inspector.doctor.handle import handle_of
from kitlib.inspector.doctor.situation import Observed, Situation, stage_name
from kitlib.inspector.doctor.values import KeptValues, cell_of
from kitlib.transfer_queue import PartitionSnapshot, QueueSnapshot
from kitlib.transfer_queue.cells import CellTable


class CaseFileError(KitError, ValueError):
    """A file that is no case file."""


def read_case(path: str | Path) -> dict[str, Any]:
    """The JSON of a case file. Raises CaseFileError naming the file and what is missing."""
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CaseFileError(f"{path} cannot be read as a case file: {error}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("partitions"), dict):
        raise CaseFileError(f"{path} is no case file: a JSON object with `partitions` was expected")
    return raw


def situation_of(raw: Mapping[str, Any]) -> Situation:
    """The state of a case as rules see it."""
    snapshot, kept = snapshot_of_case(raw["partitions"])
    return Situation(snapshot=snapshot, values=KeptValues(kept), **arguments_of(raw))


def arguments_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Everything of a case but the queue itself: keyword arguments of `Situation`."""
    before = raw.get("before")
    return {
        "stage": stage_name(raw.get("stage")),
        "choices": Choices(raw.get("config") or {}, raw.get("mode")),
        "global_steps": raw.get("global_steps"),
        "batch": handle_of(raw.get("batch")),
        "request": handle_of(raw.get("request")),
        "before": snapshot_of_case(before)[0] if before else None,
        "context": raw.get("context") or {},
        "observed": Observed(
            columns=raw.get("columns") or {},
            writes=raw.get("writes") or (),
            unreadable=raw.get("unreadable") or {},
            chunks=tuple(handle for one in raw.get("batches") or () if (handle := handle_of(one)) is not None),
        ),
    }


def snapshot_of_case(
    partitions: Mapping[str, list[dict[str, Any]]],
) -> tuple[QueueSnapshot, dict[str, dict[str, dict[str, Any]]]]:
    """The picture of these partitions, and the values of every row."""
    values = {
        name: {e["key"]: {f: value_of(v) for f, v in e["fields"].items()} for e in entries}
        for name, entries in partitions.items()
    }
    pictures = {name: _partition(name, entries, values[name]) for name, entries in partitions.items()}
    return QueueSnapshot(0.0, pictures), values


def value_of(field: Mapping[str, Any]) -> Any:
    """A field of a case: a numpy array of the stated dtype and shape, or the JSON value of a non-tensor."""
    if field["dtype"] == "object":
        return field["object"]
    dtype = np.dtype("float32" if field["dtype"] == "bfloat16" else field["dtype"])
    shape = tuple(field["shape"])
    if "fill" in field:
        return np.full(shape, float(field["fill"]) if isinstance(field["fill"], str) else field["fill"], dtype)
    if field.get("arange"):
        return np.broadcast_to(np.arange(shape[-1], dtype=dtype), shape)
    return np.array(_numbers(field["values"]), dtype=dtype).reshape(shape)


def _numbers(values: Any) -> Any:
    """JSON has no NaN: the words "nan", "inf" and "-inf" stand for them."""
    if isinstance(values, list):
        return [_numbers(value) for value in values]
    return float(values) if isinstance(values, str) else values


def _partition(name: str, entries: list[dict[str, Any]], values: dict[str, dict[str, Any]]) -> PartitionSnapshot:
    fields = list(dict.fromkeys(field for entry in entries for field in entry["fields"]))
    column = {field: j for j, field in enumerate(fields)}
    table = CellTable()
    codes = np.zeros((len(entries), len(fields)), dtype=np.int32)  # [num_keys, num_fields]
    for i, entry in enumerate(entries):
        for field, value in values[entry["key"]].items():
            codes[i, column[field]] = table.code(cell_of(value))
    return PartitionSnapshot(
        partition_id=name,
        keys=tuple(entry["key"] for entry in entries),
        tags=tuple(entry["tag"] for entry in entries),
        fields=tuple(fields),
        present=codes > 0,
        codes=codes,
        cells=tuple(table.cells),
    )
