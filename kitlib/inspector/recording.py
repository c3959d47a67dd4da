"""Open a recording: every view works on it as on the queue, without the run, Ray or a GPU.

    recording = open_recording("runs/20260101-120000/recording")
    recording.moments                        # the queue after each stage
    presence(recording, "update_actor")      # the last one
    moment = recording.find("compute_advantage", step=3)
    presence(moment, "update_actor", recording.config)
    key_life(recording, "f3a1_0_0")          # a recording is an event log too

verl 0.9.1 has no counterpart. Nothing here unpickles. A recording that is still being written can be opened;
`refresh()` reads what has come since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from tensordict import TensorDict

from kitlib.contract import StageRecord
from kitlib.inspector.recorded_config import RecordedConfig
from kitlib.inspector.recorded_wait import RecordedWait
from kitlib.inspector.recording_files import (
    CONFIG,
    DOCTOR,
    FAILURE,
    LOG,
    SNAPSHOTS,
    TASKS,
    VALUES,
    RecordingError,
    load_values,
    numbered,
    parts_of,
    read_header,
)
from kitlib.inspector.timeline import DRIVER, Span, Timeline, joined, stage_span
from kitlib.transfer_queue import Event, KVBatchMeta, QueueSnapshot, load_snapshot
from kitlib.transfer_queue.events import event_of


def open_recording(path: str | Path) -> Recording:
    """Open the folder that `record` has written. Raises RecordingError for anything else."""
    return Recording(Path(path))


@dataclass(frozen=True)
class Moment:
    """The queue at one mark. label: the stage that had ended, "failure", or "" for a picture in between.

    A moment is a source for every view; values are there only if the recorder was asked for them.
    """

    folder: Path
    picture: int
    label: str
    step: int | None
    at: float  # seconds since the epoch

    def snapshot(self, partition_id: str | None = None) -> QueueSnapshot:
        """All partitions, or one."""
        whole = load_snapshot(numbered(self.folder, SNAPSHOTS, self.picture))
        if partition_id is None:
            return whole
        return QueueSnapshot(whole.taken_at, {k: v for k, v in whole.partitions.items() if k == partition_id})

    def __str__(self) -> str:
        step = f"step {self.step} " if self.step is not None else ""
        return f"{step}after {self.label}" if self.label and self.label != "failure" else f"{step}{self.label}".strip()


class MomentWithValues(Moment):
    """A moment whose recorder was asked for values: reads work as far as fields were named."""

    def kv_batch_get(
        self, keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None
    ) -> TensorDict:
        """The recorded columns of these rows."""
        keys = [keys] if isinstance(keys, str) else keys
        fields = [select_fields] if isinstance(select_fields, str) else select_fields
        return load_values(numbered(self.folder, VALUES, self.picture), partition_id, keys, fields)

    def kv_batch_get_by_meta(self, meta: KVBatchMeta, select_fields: list[str] | str | None = None) -> TensorDict:
        """The recorded columns of the rows of a handle."""
        return self.kv_batch_get(meta.keys, meta.partition_id or "", select_fields or meta.fields)


class Recording:
    """See `open_recording`. A source for every view (its last moment), and an event log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header = read_header(folder)
        self._events: list[Event] = []
        self._marks: list[dict[str, Any]] = []
        self._spans: list[Span] = []
        self._read_up_to: dict[Path, int] = {}  # segment of the log -> bytes
        self._parts: dict[Path, Recording] = {}  # of the run, this one among them
        self.refresh()

    def refresh(self) -> bool:
        """Read what has been written since; True if there was something."""
        lines = list(self._new_lines())
        self._events += [event_of(line["event"]) for line in lines if "event" in line]
        self._marks += [line["mark"] for line in lines if "mark" in line]
        self._spans += [Span(**line["span"]) for line in lines if "span" in line]
        self.moments = tuple(moment for mark in self._marks if (moment := _moment(self.folder, mark)) is not None)
        self.stage_records = [StageRecord(**mark["record"]) for mark in self._marks if mark.get("record")]
        return bool(lines)

    def _new_lines(self) -> Iterator[dict[str, Any]]:
        """Whole lines only: the last one of a segment that is being written may be incomplete."""
        for path in sorted((self.folder / LOG).glob("*.jsonl")):
            start = self._read_up_to.get(path, 0)
            with open(path, "rb") as file:
                file.seek(start)
                whole = file.read().rpartition(b"\n")[0]
            for line in whole.splitlines():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise RecordingError(f"{path}: a line that is none of a recording ({error})") from error
            self._read_up_to[path] = start + len(whole) + bool(whole)

    # What a view takes

    def events(self, since: int = 0) -> list[Event]:
        """The recorded calls with a number of at least `since`, oldest first."""
        return [event for event in self._events if event.number >= since]

    def snapshot(self, partition_id: str | None = None) -> QueueSnapshot:
        """The queue at the last moment."""
        return self.last.snapshot(partition_id)

    @property
    def snapshots(self) -> Sequence[QueueSnapshot]:
        """The queue at every moment, oldest first; each is read from its file when it is asked for."""
        return _Pictures(self.moments)

    # Moments

    @property
    def last(self) -> Moment:
        """The last moment. Raises RecordingError if there is none yet."""
        if not self.moments:
            raise RecordingError(f"{self.folder} holds no picture of the queue yet")
        return self.moments[-1]

    def find(self, label: str, step: int | None = None) -> Moment:
        """The last moment after a stage (of a step). Raises RecordingError that names those there are."""
        found = [one for one in self.moments if one.label == label and step in (None, one.step)]
        if not found:
            known = ", ".join(dict.fromkeys(one.label for one in self.moments if one.label)) or "none"
            at = "" if step is None else f" of step {step}"
            raise RecordingError(f"no moment after {label!r}{at} in {self.folder}; there are: {known}")
        return found[-1]

    def history(self, step: int | None = None) -> list[tuple[str, QueueSnapshot]]:
        """(stage, queue after it) of one step, by default the last one with a picture: what stage_table takes."""
        steps = [one.step for one in self.moments if one.step]
        step = step if step is not None else max(steps, default=None)
        return [(one.label, one.snapshot()) for one in self.moments if one.step == step and one.label]

    def timeline(self) -> Timeline:
        """Who was busy when, in every recorded part of the run: its spans, or at least its stages. See `time_line`.

        Raises EmptyTimelineError if there is no stage yet.
        """
        for place in parts_of(self.folder):
            self._parts.setdefault(place, self if place == self.folder else open_recording(place)).refresh()
        seen = [part for part in self._parts.values() if part.spans] or [self]
        return joined([part.own_timeline() for part in seen])

    def own_timeline(self) -> Timeline:
        """The same of this recording alone."""
        mode = None if self.config is None else self.config.select("trainer.v1.trainer_mode", None)
        return Timeline(mode or "run", tuple(self.spans))

    @property
    def spans(self) -> list[Span]:
        """What was recorded of the time line, or at least the stages that have ended."""
        ended = [record for record in self.stage_records if record.seconds is not None]
        return self._spans or [stage_span(record, DRIVER) for record in ended]

    def waiting_at(self, moment: Moment) -> RecordedWait | None:
        """What `sample` was waiting for at a moment: the last report since it began, None if it was not running."""
        wait = None
        for mark in self._marks:
            if mark["at"] > moment.at:
                break
            record = mark.get("record") or {}
            if record.get("stage") == "sample" and record.get("error") is None:
                wait = None  # it begins, or has got its batch
            if mark.get("waiting"):
                wait = RecordedWait.from_dict(mark["waiting"])
        return wait

    # Texts

    @cached_property
    def config(self) -> RecordedConfig | None:
        """The settings of the run with their origins, None if they were not recorded."""
        text = self._text(CONFIG)
        return RecordedConfig(text) if text else None

    @property
    def failure(self) -> str:
        """The error that ended the run, with its traceback; "" if it did not fail."""
        return self._text(FAILURE)

    @property
    def error(self) -> str:
        """The sentence of the failure: what stands in its last line that is not indented; "" if there is none."""
        lines = self.failure.rstrip().split("\n")
        said = [one for one in lines if not one.startswith(" ")]  # what follows indented explains it
        return said[-1] if said else lines[-1]

    @property
    def tasks(self) -> str:
        """The background tasks at the failure, as text."""
        return self._text(TASKS)

    @property
    def diagnosis(self) -> dict[str, Any]:
        """What the doctor found when the run failed (`Report.as_dict()`); {} if it found nothing."""
        text = self._text(DOCTOR)
        return json.loads(text) if text else {}

    def _text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def __repr__(self) -> str:
        ended = "failed" if self.failure else f"{len(self.moments)} moments"
        return f"Recording({str(self.folder)!r}, {ended}, {len(self._events)} events)"


class _Pictures(Sequence[QueueSnapshot]):
    def __init__(self, moments: Sequence[Moment]) -> None:
        self._moments = moments

    def __len__(self) -> int:
        return len(self._moments)

    @overload
    def __getitem__(self, index: int) -> QueueSnapshot: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[QueueSnapshot]: ...

    def __getitem__(self, index: int | slice) -> QueueSnapshot | Sequence[QueueSnapshot]:
        chosen = self._moments[index]
        return chosen.snapshot() if isinstance(chosen, Moment) else _Pictures(chosen)


def _moment(folder: Path, mark: dict[str, Any]) -> Moment | None:
    """None for the begin of a stage, and for a picture that has been removed to keep the folder small."""
    picture, begins = mark.get("picture"), (mark.get("record") or {}).get("seconds", 0) is None
    if picture is None or begins or not numbered(folder, SNAPSHOTS, picture).exists():
        return None
    kind = MomentWithValues if numbered(folder, VALUES, picture).exists() else Moment
    return kind(folder, picture, mark["label"], mark["step"], mark["at"])
