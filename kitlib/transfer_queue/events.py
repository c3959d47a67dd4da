"""The event log: every verb call, who made it, what it touched, how long it took: who wrote this, and over what?

    log = EventLog(path="events.jsonl")          # a ring of the last 10,000 events; the file is optional
    tq = watch(TransferQueue(), log)             # the same verbs; works around any queue, the package on Ray as well
    with acting_as(stage="compute_advantage"):   # who is calling; a worker or a stage says so once
        tq.kv_batch_put(...)
    log.provenance("train", "u1_0_0", "advantages")

A put is recorded with the description of its columns (dtype and row shapes), never with values. A line of the file is
one event as JSON, written when the call ends, so that another process can follow the file while it grows.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from kitlib.transfer_queue.actors import LastWrite
from kitlib.transfer_queue.cells import Cell, Layout
from kitlib.transfer_queue.errors import QueueFileError


class Column(NamedTuple):
    """What a put brought for one field, as far as it can be told in a few microseconds: of objects, only that they are.

    lengths: of ragged one-dimensional rows, otherwise None and all rows have the same shape (an object has none).
    """

    dtype: str
    layout: Layout
    num_rows: int
    row_bytes: int
    shape: tuple[int, ...]
    lengths: tuple[int, ...] | None = None

    def cell(self, row: int) -> Cell:
        """The description of one row. With lengths, row_bytes are those of one element."""
        if self.lengths is None:
            return Cell(self.dtype, self.shape, self.layout, self.row_bytes)
        length = self.lengths[row]
        return Cell(self.dtype, (length,), self.layout, length * self.row_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows; 0 for objects."""
        return self.row_bytes * (self.num_rows if self.lengths is None else sum(self.lengths))


@dataclass(frozen=True)
class Event:
    """One verb call. started_at: seconds since the epoch. seconds: its duration. num_bytes: of what went in or out.

    fields: {field: column} of what was put, {field: None} of what a get delivered. tags: of a put, one a key. error:
    type and first line of what was raised.
    """

    number: int
    verb: str
    partition_id: str | None
    keys: tuple[str, ...]
    fields: dict[str, Column | None]
    tags: tuple[dict[str, Any], ...]
    num_bytes: int
    started_at: float
    seconds: float
    who: dict[str, str]
    thread: str
    error: str | None = None

    @property
    def is_put(self) -> bool:
        """True for kv_put and kv_batch_put."""
        return self.verb in ("kv_put", "kv_batch_put")


@dataclass(frozen=True)
class Write:
    """One write of a cell: the event, what it wrote, and what lay there before as far as the log goes back."""

    event: Event
    cell: Cell
    over: Cell | None


class EventLog:
    """The last `capacity` events, oldest first; thread-safe. `path`: also append each as a JSON line to this file."""

    def __init__(self, capacity: int = 10_000, path: str | Path | None = None) -> None:
        self._ring: deque[Event] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._num_events = 0
        self._file: TextIO | None = None if path is None else open(path, "a", encoding="utf-8")  # noqa: SIM115 (lives as long as the log)

    @property
    def num_events(self) -> int:
        """Events recorded since the start, those that fell out of the ring included."""
        return self._num_events

    def events(self, since: int = 0) -> list[Event]:
        """Events with a number of at least `since` that are still in the ring."""
        with self._lock:
            return [event for event in self._ring if event.number >= since]

    def record(self, event: Event) -> None:
        """Number an event and keep it."""
        with self._lock:
            numbered = replace(event, number=self._num_events)
            self._num_events += 1
            self._ring.append(numbered)
            if self._file is not None:
                self._file.write(json.dumps(vars(numbered), default=repr) + "\n")
                self._file.flush()

    def provenance(self, partition_id: str, key: str, field: str) -> list[Write]:
        """Every write of one cell since its key was last cleared, oldest first; empty if nobody wrote it."""
        writes: list[Write] = []
        for event in self.events():
            if event.partition_id != partition_id or key not in event.keys or event.error is not None:
                continue
            if event.verb == "kv_clear":
                writes = []
            elif event.is_put and field in event.fields:
                column = event.fields[field]
                assert column is not None, "a put describes its columns"
                cell = column.cell(event.keys.index(key))
                writes.append(Write(event, cell, writes[-1].cell if writes else None))
        return writes

    def last_writes(self, partition_id: str) -> dict[str, LastWrite]:
        """The last put to every key of the partition that was not cleared since, as far as the log goes back."""
        last: dict[str, LastWrite] = {}
        for event in self.events():
            if event.partition_id != partition_id or event.error is not None:
                continue
            if event.verb == "kv_clear":
                for key in event.keys:
                    last.pop(key, None)
            elif event.is_put:
                last.update(dict.fromkeys(event.keys, LastWrite(event.started_at, event.who, event.thread)))
        return last

    def close(self) -> None:
        """Close the file; the ring stays readable."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def read_events(path: str | Path) -> list[Event]:
    """The events of a file. An unfinished last line is left out; QueueFileError for any other bad line."""
    events, lines = [], Path(path).read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is incomplete or empty
        try:
            events.append(event_of(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise QueueFileError(f"{path}, line {number}: no event of a queue ({error})") from error
    return events


def event_of(data: dict[str, Any]) -> Event:
    """The event that was written as `vars(event)` in JSON; `data` is used up."""
    columns = data.pop("fields").items()
    fields = {name: None if column is None else _column_of(*column) for name, column in columns}
    return Event(fields=fields, keys=tuple(data.pop("keys")), tags=tuple(data.pop("tags")), **data)


def _column_of(dtype: str, layout: Layout, num_rows: int, row_bytes: int, shape: list, lengths: list | None) -> Column:
    return Column(dtype, layout, num_rows, row_bytes, tuple(shape), None if lengths is None else tuple(lengths))
