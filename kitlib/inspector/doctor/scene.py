"""One partition sorted into what the trainer takes its keys for: markers, rows, and keys that are neither.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py (a key is a prompt iff its tag says is_prompt; a row belongs to the prompt
whose uid is the part before the first underscore) and trainer/ppo/v1/utils.py (the advantage stage cuts at the last
two underscores). The two cuts differ for a uid with an underscore; `Row.uid` is the second, `Row.sampler_uid` the
first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kitlib.keys import uid_of
from kitlib.transfer_queue import PartitionSnapshot

_ROW_KEY = re.compile(r"(.*)_([0-9]+)_([0-9]+)", re.DOTALL)
_STATE_TAGS = frozenset({"status", "global_steps", "is_prompt"})  # of a marker
_PADDING_KEY = re.compile(r"pad[0-9a-f]{8,}_[0-9]+_[0-9]+")
ABSENT = -1  # length of a field that is no tensor with a dim, or not there
SETTLED, IN_FLIGHT = ("finished", "failure"), ("pending", "running")


@dataclass(frozen=True, slots=True)
class Row:
    """A key that is taken for a trajectory.

    index: None if the advantage stage cannot read the key; then nothing is known of its session either. session_id:
    None also for a session that is no number.
    """

    key: str
    position: int  # in the partition
    tag: Mapping[str, Any]
    uid: str
    session_id: int | None
    index: int | None
    num_fields: int
    is_padding: bool  # marked as padding, or named like it

    @property
    def sampler_uid(self) -> str:
        return uid_of(self.key)

    @property
    def session(self) -> str:
        """Name of the session: all outputs of one session share it."""
        if self.session_id is None:
            return self.key if self.index is None else self.key.rpartition("_")[0]
        return f"{self.uid}_{self.session_id}"

    @property
    def is_readable(self) -> bool:
        """True if the advantage stage can read the key."""
        return self.index is not None


@dataclass(frozen=True)
class Scene:
    """The keys of one partition. markers: {uid: tag}. ghosts: keys without a field that are neither marker nor row,
    with what is left of a marker's tag. notes: such keys with tags of somebody's own.
    """

    partition: PartitionSnapshot
    markers: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Row]
    ghosts: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.partition.partition_id

    @cached_property
    def rows_of(self) -> dict[str, list[Row]]:
        """Real rows with at least one field, by uid."""
        return grouped(row for row in self.rows.values() if row.num_fields and not row.is_padding)

    @cached_property
    def strangers(self) -> frozenset[str]:
        """Keys with fields that are no trajectory of any prompt: neither the sampler nor a stage ever reads them."""
        odd = [row for row in self.rows.values() if not row.is_readable and not row.is_padding]
        if not odd:
            return frozenset()
        uids = {row.uid for row in self.rows.values() if row.is_readable} | set(self.markers)
        return frozenset(row.key for row in odd if row.sampler_uid not in uids)

    def with_status(self, statuses: Iterable[str]) -> list[str]:
        """Markers with one of these statuses, oldest first as the sampler takes them."""
        wanted = frozenset(statuses)
        found = [uid for uid, tag in self.markers.items() if _word(tag.get("status")) in wanted]
        return sorted(found, key=lambda uid: whole(self.markers[uid].get("global_steps")) or 0)

    @cached_property
    def settled(self) -> list[str]:
        return self.with_status(SETTLED)

    @cached_property
    def in_flight(self) -> list[str]:
        return self.with_status(IN_FLIGHT)

    def has(self, rows: Iterable[Row], field: str) -> list[bool]:
        """Which of the rows have the field."""
        column = self.partition.column_of.get(field)
        if column is None:
            return [False for _ in rows]
        present = self.partition.present[:, column]
        return [bool(present[row.position]) for row in rows]

    @cached_property
    def last_dims(self) -> np.ndarray:
        """int64 [num_cells]: length of the last dim of each description, ABSENT for a scalar or an object."""
        found = [c.shape[-1] if c.layout == "row" and c.shape else ABSENT for c in self.partition.cells]
        return np.array(found or [ABSENT], dtype=np.int64)

    def having(self, rows: Iterable[Row], field: str) -> list[Row]:
        """The rows that have the field."""
        rows = list(rows)
        return [row for row, there in zip(rows, self.has(rows, field), strict=True) if there]


def scene_of(partition: PartitionSnapshot) -> Scene:
    """Sort the keys of a partition."""
    markers: dict[str, Mapping[str, Any]] = {}
    rows: dict[str, Row] = {}
    ghosts: list[str] = []
    notes: list[str] = []
    counts = partition.present.sum(axis=1).tolist()  # fields a key
    for position, (key, tag) in enumerate(zip(partition.keys, partition.tags, strict=True)):
        if tag.get("is_prompt"):
            markers[key] = tag
        elif (match := _ROW_KEY.fullmatch(key)) is not None:
            uid, session_id, index = match.groups()
            padding = _is_padding(key, tag)
            rows[key] = Row(key, position, tag, uid, int(session_id), int(index), counts[position], padding)
        elif counts[position]:
            rows[key] = Row(key, position, tag, *read_key(key), counts[position], _is_padding(key, tag))
        else:
            (ghosts if not tag or _STATE_TAGS & tag.keys() else notes).append(key)
    return Scene(partition, markers, rows, tuple(ghosts), tuple(notes))


def read_key(key: str) -> tuple[str, int | None, int | None]:
    """(uid, session_id, index) of an unusual key as the advantage stage cuts it: only the index must be a number."""
    parts = key.rsplit("_", 2)
    index = _number(parts[-1])
    if len(parts) < 3 or index is None:
        return uid_of(key), None, None
    return parts[0], _number(parts[1]), index


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_padding(key: str, tag: Mapping[str, Any]) -> bool:
    return bool(tag.get("is_padding")) or (key.startswith("pad") and _PADDING_KEY.fullmatch(key) is not None)


def grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by uid, in their order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.uid, []).append(row)
    return groups


def sessions_of(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by session, the outputs of a session in order of their index."""
    sessions: dict[str, list[Row]] = {}
    for row in rows:
        sessions.setdefault(row.session, []).append(row)
    for outputs in sessions.values():
        if len(outputs) > 1:
            outputs.sort(key=lambda row: -1 if row.index is None else row.index)
    return sessions


def last_outputs(rows: Iterable[Row]) -> list[Row]:
    """The row that counts of every session: the one with the highest index."""
    return [outputs[-1] for outputs in sessions_of(rows).values()]


def keys_of(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(row.key for row in rows)


def whole(value: Any) -> int | None:
    """The value if it is a whole number, else None: tags come from anywhere."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
