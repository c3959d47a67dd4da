"""Which rows of a partition a view speaks about, and which of them a filter shows.

verl 0.9.1: the split of markers and rows follows trainer/ppo/v1/replay_buffer.py (a key is a prompt iff its tag says
is_prompt) and padding rows are those that trainer/ppo/padding_utils.py marks with the tag is_padding.

    keys of a partition ──┬── markers   tag is_prompt                     one a prompt, counted by status
                          ├── strays    neither marker nor row            a cleared or half-registered key
                          └── rows      {uid}_{session_id}_{index}        what a stage reads; padding rows among them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from kitlib.errors import KitError
from kitlib.inspector.tags import status_of
from kitlib.keys import is_trajectory_key, uid_of

if TYPE_CHECKING:
    from kitlib.transfer_queue import KVBatchMeta, PartitionSnapshot, QueueSnapshot


class NoSuchPartitionError(KitError, KeyError):
    """A partition that the snapshot does not hold."""

    __str__ = Exception.__str__  # KeyError would print the repr of the sentence


@dataclass(frozen=True)
class Selection:
    """Rows of one partition by position. `absent` lists keys of the batch that the partition does not hold."""

    partition: PartitionSnapshot
    rows: tuple[int, ...]
    markers: tuple[int, ...]
    strays: tuple[int, ...]
    absent: tuple[str, ...] = ()
    from_batch: bool = False

    def keys(self, positions: Iterable[int]) -> list[str]:
        return [self.partition.keys[i] for i in positions]

    def tags(self, positions: Iterable[int]) -> list[dict[str, Any]]:
        return [self.partition.tags[i] for i in positions]

    def is_padding(self, position: int) -> bool:
        return bool(self.partition.tags[position].get("is_padding"))

    def presence(self, fields: Sequence[str]) -> np.ndarray:
        """Which of the selected rows have which fields: bool [num_rows, num_fields]; a field nobody has is all
        False."""
        column = {name: j for j, name in enumerate(self.partition.fields)}
        out = np.zeros((len(self.rows), len(fields)), dtype=bool)  # [num_rows, num_fields]
        for j, name in enumerate(fields):
            if name in column:
                out[:, j] = self.partition.present[list(self.rows), column[name]]
        return out

    def num_fields_of_rows(self) -> np.ndarray:
        """How many fields each selected row has: int [num_rows]."""
        return self.partition.present[list(self.rows)].sum(axis=1)


def select(snapshot: QueueSnapshot, partition_id: str, batch: KVBatchMeta | None = None) -> Selection:
    """The keys of a partition, split into rows, markers and strays; with a batch, only its keys, in its order, all
    taken as rows.

    Raises NoSuchPartitionError naming the partitions that exist.
    """
    partition = snapshot.partitions.get(partition_id)
    if partition is None:
        known = ", ".join(snapshot.partitions) or "none yet"
        raise NoSuchPartitionError(f"no partition {partition_id!r} in the queue; partitions: {known}")
    if batch is not None:
        position = {key: i for i, key in enumerate(partition.keys)}
        rows = tuple(position[key] for key in batch.keys if key in position)
        return Selection(
            partition, rows, (), (), tuple(key for key in batch.keys if key not in position), from_batch=True
        )
    kinds: dict[str, list[int]] = {"row": [], "marker": [], "stray": []}
    has_fields: np.ndarray = partition.present.sum(axis=1) > 0  # [num_keys]
    for i, (key, tag) in enumerate(zip(partition.keys, partition.tags, strict=True)):
        kinds[kind_of(key, tag, has_fields[i])].append(i)
    return Selection(partition, tuple(kinds["row"]), tuple(kinds["marker"]), tuple(kinds["stray"]))


def kind_of(key: str, tag: Mapping[str, Any], has_field: bool) -> str:
    """`marker`, `row` or `stray`: what a key of a partition is."""
    if tag.get("is_prompt"):
        return "marker"
    return "row" if is_trajectory_key(key) or has_field else "stray"


@dataclass(frozen=True)
class Filter:
    """What to show. `uid`: the beginning of a uid. `status`: a tag value. `key`, `field`: a pattern with * and ?."""

    uid: str | None = None
    status: str | None = None
    key: str | None = None
    field: str | None = None
    missing_only: bool = False

    def keeps(self, key: str, tag: dict[str, Any]) -> bool:
        """True if a key with this tag is shown."""
        return (
            (self.uid is None or uid_of(key).startswith(self.uid))
            and (self.status is None or status_of(tag) == self.status)
            and (self.key is None or fnmatchcase(key, self.key))
        )

    def keeps_field(self, name: str) -> bool:
        """True if the column of this field is shown."""
        return self.field is None or fnmatchcase(name, self.field)

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in vars(self).items() if value not in (None, False)]
        return ", ".join(parts)
