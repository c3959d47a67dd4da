"""Say what a plain get would drop, or refuse to drop anything.

A plain `kv_batch_get` narrows in silence: unknown keys vanish, and one row without a field removes the field for all
rows. `explain_get` reports that without reading a value; `strict_get` is a get that raises instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDict

from kitlib.transfer_queue.errors import MissingFieldsError, QueueValueError
from kitlib.transfer_queue.metadata import KVBatchMeta
from kitlib.transfer_queue.snapshot import PartitionSnapshot, take_snapshot


@dataclass(frozen=True)
class GetReport:
    """What a plain get of these keys and fields would do.

    missing_cells: (key, field) that a row which exists lacks. dropped_fields: requested fields that some row has and
    another lacks, so that a plain get silently drops them. unknown_fields: requested names that no row of the partition
    has, each with the nearest names that exist.
    """

    partition_id: str
    requested_keys: list[str]
    requested_fields: list[str]
    missing_keys: list[str]
    missing_cells: list[tuple[str, str]]
    dropped_fields: list[str]
    unknown_fields: dict[str, list[str]]

    @property
    def ok(self) -> bool:
        """True if a plain get returns every requested row with every requested field."""
        return not (self.missing_keys or self.missing_cells or self.unknown_fields)

    def __str__(self) -> str:
        head = (
            f"get of {len(self.requested_keys)} keys x {len(self.requested_fields)} fields "
            f"from partition {self.partition_id!r}"
        )
        if self.ok:
            return f"{head}: complete"
        lines = [f"{head}: incomplete"]
        if self.missing_keys:
            lines.append(f"  {len(self.missing_keys)} keys do not exist: {_few(self.missing_keys)}")
        for field, near in self.unknown_fields.items():
            hint = f"; near names: {', '.join(near)}" if near else ""
            lines.append(f"  {field}: no row of the partition has it{hint}")
        for field in self.requested_fields:
            lacking = [key for key, name in self.missing_cells if name == field]
            if lacking and field not in self.unknown_fields:
                num_rows = len(self.requested_keys) - len(self.missing_keys)
                lines.append(f"  {field}: {len(lacking)} of {num_rows} rows lack it: {_few(lacking)}")
        if self.dropped_fields:
            lines.append(f"  a plain kv_batch_get drops without an error: {', '.join(self.dropped_fields)}")
        return "\n".join(lines)


def explain_get(
    tq: Any,
    keys_or_batch: Sequence[str] | str | KVBatchMeta,
    select_fields: Sequence[str] | str | None = None,
    partition_id: str | None = None,
) -> GetReport:
    """What a plain get would drop and why. Works on any queue that take_snapshot knows; reads no value.

    keys_or_batch: keys (then partition_id is needed) or a KVBatchMeta. select_fields: default is `batch.fields`, else
    every field that one of the rows has.
    """
    keys, partition_id, wanted = _request(keys_or_batch, select_fields, partition_id)
    partition = take_snapshot(tq, partition_id).partitions.get(partition_id)
    if partition is None:
        unknown: dict[str, list[str]] = {field: [] for field in wanted or []}
        return GetReport(partition_id, keys, wanted or [], keys, [], [], unknown)
    return _report(partition, keys, wanted)


def strict_get(
    tq: Any,
    keys_or_batch: Sequence[str] | str | KVBatchMeta,
    select_fields: Sequence[str] | str | None,
    partition_id: str | None = None,
) -> TensorDict:
    """kv_batch_get that returns every requested row with every requested field, or raises.

    select_fields None means the fields of the handle, else what all rows have.

    Raises MissingFieldsError that lists every missing key and every missing (key, field), with near names for fields
    that no row has. If all is there it costs no more than the plain get.
    """
    keys, partition_id, wanted = _request(keys_or_batch, select_fields, partition_id)
    failure: ValueError | None = None
    try:
        data: TensorDict = tq.kv_batch_get(keys, partition_id, wanted)
        if len(data) == len(keys) and not set(wanted or []) - set(data.keys()):
            return data
    except ValueError as error:  # nothing found, or nothing that all rows have
        failure = error
    report = explain_get(tq, keys, wanted, partition_id)
    if failure is not None and report.ok:
        raise failure  # not a matter of missing rows or fields
    raise MissingFieldsError(str(report)) from failure


def _request(
    keys_or_batch: Sequence[str] | str | KVBatchMeta,
    select_fields: Sequence[str] | str | None,
    partition_id: str | None,
) -> tuple[list[str], str, list[str] | None]:
    wanted = [select_fields] if isinstance(select_fields, str) else select_fields
    if isinstance(keys_or_batch, KVBatchMeta):
        partition_id = partition_id or keys_or_batch.partition_id
        wanted = keys_or_batch.fields if wanted is None else wanted
        keys: Iterable[str] = keys_or_batch.keys
    else:
        keys = [keys_or_batch] if isinstance(keys_or_batch, str) else keys_or_batch
    if partition_id is None:
        raise QueueValueError("which partition? pass partition_id, or a KVBatchMeta that has one")
    return list(keys), partition_id, None if wanted is None else list(wanted)


def _report(partition: PartitionSnapshot, keys: list[str], wanted: list[str] | None) -> GetReport:
    existing = [key for key in keys if key in partition]
    if wanted is None:
        own = {field for key in existing for field in partition.fields_of(key)}
        wanted = [field for field in partition.fields if field in own]
    lacking = [(key, field) for field in wanted for key in existing if not partition.has(key, field)]
    return GetReport(
        partition_id=partition.partition_id,
        requested_keys=keys,
        requested_fields=wanted,
        missing_keys=[key for key in keys if key not in partition],
        missing_cells=lacking,
        dropped_fields=_dropped(wanted, lacking, len(existing)),
        unknown_fields={name: near_names(name, partition.fields) for name in wanted if name not in partition.fields},
    )


def _dropped(wanted: Iterable[str], lacking: list[tuple[str, str]], num_rows: int) -> list[str]:
    """Fields that some row has and another lacks."""
    counts = dict.fromkeys(wanted, 0)
    for _, field in lacking:
        counts[field] += 1
    return [field for field, count in counts.items() if 0 < count < num_rows]


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three names that `name` may be a slip of, nearest first."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def _few(keys: Sequence[str], shown: int = 5) -> str:
    more = f" (+{len(keys) - shown})" if len(keys) > shown else ""
    return ", ".join(keys[:shown]) + more
