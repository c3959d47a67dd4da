"""`Situation`: everything that one examination knows. A rule is a pure function of it.

verl 0.9.1 has no counterpart. Only the picture is always there; each other part may be missing, and a rule that needs
it is then silent:

    snapshot    keys, tags, presence, shapes          before      an earlier picture
    values      the few fields that a rule may read   batch       the handle of the running step
    stage       the stage about to run                request     a get about to be made
    choices     what the config says                  context     facts that are not in the queue (dp_size, ...)
    waiting     what `sample` says that it waits for
    observed    layouts of columns, puts, values that could not be read, chunks of the handle
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from kitlib.contract import STAGES
from kitlib.inspector.doctor.choices import Choices
from kitlib.inspector.doctor.handle import Handle
from kitlib.inspector.doctor.scene import Row, Scene, keys_of, scene_of, sessions_of
from kitlib.inspector.doctor.values import NO_VALUES, Values
from kitlib.transfer_queue import EventLog, PartitionSnapshot, QueueSnapshot

MAX_ROWS_READ = 4096  # rows whose values one rule reads; whole groups, the first ones
BEFORE_SAMPLING = ("submit_batch_to_rollout", "generate_sequences", "sample", "validate", "resume", "save_checkpoint")
_SHORT = {
    "submit": "submit_batch_to_rollout",
    "agent_loop": "generate_sequences",
    "reward_colocate": "compute_reward_colocate",
    "balance": "balance_batch",
    "old_log_prob": "compute_old_log_prob",
    "ref_log_prob": "compute_ref_log_prob",
    "values": "compute_values",
    "advantage": "compute_advantage",
    "checkpoint": "save_checkpoint",
}


@dataclass(frozen=True)
class Observed:
    """What was seen of reads and writes, beyond the picture.

    columns:    {partition: {field: {"layout": "jagged" | "dense" | "object", ...}}} as the store hands them back.
    writes:     puts as they were made, with the layout of each column.
    unreadable: {partition: {key: [fields]}} that are listed but have no value.
    chunks:     parts of the handle with their extra_info.
    """

    columns: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    writes: Sequence[Mapping[str, Any]] = ()
    unreadable: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    chunks: Sequence[Handle] = ()


@dataclass(frozen=True)
class Situation:
    """See the module docstring. stage: a name of the contract, or "resume"; None if nobody knows."""

    snapshot: QueueSnapshot
    values: Values = NO_VALUES
    stage: str | None = None
    choices: Choices = field(default_factory=Choices)
    global_steps: int | None = None
    batch: Handle | None = None
    request: Handle | None = None
    before: QueueSnapshot | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    observed: Observed = field(default_factory=Observed)
    waiting: Any = None  # the report of a `sample` that waits (kitlib.inspector.why_waiting_view.Report)
    events: EventLog | None = None
    has_values: bool = True
    held: frozenset[str] = frozenset()  # rows that somebody works on, though no handle of them is known
    is_guessed: bool = False  # the stage was guessed from the queue
    is_coarse: bool = False  # a picture of the package: a row may show type and shape of another row of its column

    @cached_property
    def scenes(self) -> dict[str, Scene]:
        """The partitions of the trainer, and the one that the stage works on; others are none of our business."""
        names = {"train", "val", self.partition_id}
        return {name: scene_of(part) for name, part in self.snapshot.partitions.items() if name in names}

    @cached_property
    def partition_id(self) -> str:
        """The partition that the stage works on: of the batch, else verl's; of a run with other names the first one
        that has prompt markers.
        """
        if self.batch is not None:
            return self.batch.partition_id
        usual = "val" if self.stage == "validate" else "train"
        if usual in self.snapshot.partitions:
            return usual
        own = [n for n, part in self.snapshot.partitions.items() if any(tag.get("is_prompt") for tag in part.tags)]
        return next((name for name in own if name not in ("train", "val")), usual)

    @cached_property
    def scene(self) -> Scene:
        """The partition that the stage works on; an empty one if the queue does not know it."""
        return self.scenes.get(self.partition_id) or scene_of(empty_partition(self.partition_id))

    @property
    def is_before_sampling(self) -> bool:
        return self.stage in BEFORE_SAMPLING or (self.stage is None and self.batch is None)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows that the stage is about, padding among them: those of the batch; without a handle, all rows of the
        partition, or after sampling those without a marker.

        Keys without any field are left out: they have a kind of their own.
        """
        if self.batch is not None:
            keys = dict.fromkeys(self.batch.keys)
            return [row for key in keys if (row := self.scene.rows.get(key)) is not None and row.num_fields]
        aside = self.held | self.scene.strangers
        rows = [row for row in self.scene.rows.values() if row.num_fields and row.key not in aside]
        markers = self.scene.markers  # the rows of a sampled prompt have none any more
        if self.is_before_sampling or not markers:
            return rows
        return [row for row in rows if row.uid not in markers and row.sampler_uid not in markers]

    @cached_property
    def real_rows(self) -> list[Row]:
        padding = set(keys_of(self.padding_rows))
        return [row for row in self.rows if row.key not in padding] if padding else self.rows

    @cached_property
    def padding_rows(self) -> list[Row]:
        return [row for row in self.rows if row.is_padding]

    @cached_property
    def settled_rows(self) -> list[Row]:
        """The rows that will be read next: of the batch, or of the prompts that have settled."""
        if self.batch is not None or not self.is_before_sampling:
            return self.real_rows
        settled = set(self.scene.settled)
        return [row for row in self.real_rows if row.uid in settled]

    @cached_property
    def readable_rows(self) -> list[Row]:
        """At most MAX_ROWS_READ real rows, whole groups."""
        if len(self.real_rows) <= MAX_ROWS_READ:
            return self.real_rows
        chosen: list[Row] = []
        by_uid: dict[str, list[Row]] = {}
        for row in self.real_rows:
            by_uid.setdefault(row.uid, []).append(row)
        for members in by_uid.values():
            if len(chosen) + len(members) > MAX_ROWS_READ:
                break
            chosen += members
        return chosen

    def positions(self, rows: Sequence[Row]) -> np.ndarray:
        """int64 [num_rows]: where these rows stand in their partition."""
        if rows is self.rows:
            return self._positions
        return np.fromiter((row.position for row in rows), dtype=np.int64, count=len(rows))

    @cached_property
    def _positions(self) -> np.ndarray:
        return np.fromiter((row.position for row in self.rows), dtype=np.int64, count=len(self.rows))

    def read(self, field: str, rows: Sequence[Row], partition_id: str | None = None) -> dict[str, Any]:
        """{key: value} of those rows that have the field and whose value can be read."""
        keys = [row.key for row in self.scene.having(rows, field)] if partition_id is None else [r.key for r in rows]
        return self.values.read(partition_id or self.partition_id, field, keys) if keys else {}

    def n(self, partition_id: str | None = None) -> int | None:
        """Sessions a prompt, from the config, else the most that any prompt of the partition has."""
        name = partition_id or self.partition_id
        configured = self.choices.n(name)
        if configured is not None or name not in self.scenes:
            return configured
        sizes = [len(sessions_of(rows)) for rows in self.scenes[name].rows_of.values()]
        return max(sizes, default=None)

    def sessions_expected(self, uid: str, partition_id: str | None = None) -> int | None:
        """What the marker promises, else `n`."""
        scene = self.scenes.get(partition_id or self.partition_id, self.scene)
        promised = scene.markers.get(uid, {}).get("num_sessions")
        return promised if isinstance(promised, int) else self.n(partition_id)

    @cached_property
    def needed(self) -> int | None:
        """Prompts that `sample` waits for: of `val` all that were registered, of `train` what the config says."""
        if self.partition_id == "val":
            return len(self.scene.markers)
        configured = self.choices.prompts_a_sample
        return len(self.scene.markers) if configured is None else configured

    @cached_property
    def live(self) -> dict[str, bool]:
        """{uid: a task of it is running} of the prompts in flight of which the report of a wait can tell."""
        blocking = self.waiting.blocking if self.waiting is not None else ()
        return {prompt.uid: prompt.is_live for prompt in blocking if prompt.is_live is not None}

    def fact(self, name: str, default: Any = None) -> Any:
        """A fact of the context."""
        value = self.context.get(name)
        return default if value is None else value

    def is_at(self, *stages: str) -> bool:
        return self.stage in stages

    def is_past(self, stage: str) -> bool:
        """True if `stage` has run: the stage about to run comes after it."""
        order = list(STAGES)
        return self.stage in order and order.index(self.stage) > order.index(stage)


def stage_name(stage: str | None) -> str | None:
    """The contract's name of a stage; short names are understood."""
    return None if stage is None else _SHORT.get(stage.lstrip("_"), stage.lstrip("_"))


def empty_partition(partition_id: str) -> PartitionSnapshot:
    """A partition without keys."""
    nothing = np.zeros((0, 0), dtype=np.int32)
    return PartitionSnapshot(partition_id, (), (), (), nothing > 0, nothing, ())
