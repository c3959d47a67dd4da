"""Record a queue while a run goes on: every call, and the picture of the queue at stage borders.

    recorder = record(tq, "runs/mine/recording")
    tq = recorder.tq                       # the same queue, watched: hand this one to the run
    recorder.mark("compute_advantage", 3)  # the queue as it is now, named; a trainer's observer does it for every stage
    recorder.close()
    presence(open_recording("runs/mine/recording"), "update_actor")

verl 0.9.1 has no counterpart. What is written stands in `recording_files`. The thread `kitlib-recorder` writes events
out once a second, and takes a picture of its own when the queue changes for longer than two seconds without a mark, so
that a run which hangs in a stage can be looked at too; what `sample` waits for (`Recorder.waiting`) is kept with it. A
queue that cannot be watched (a run on Ray that somebody else
started, see kitlib.transfer_queue.package.attach) is pictured by that thread alone.

The folder stays below `max_bytes`: one half for the log, one for snapshots and values, the oldest go first.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from kitlib.contract import StageRecord
from kitlib.inspector.recorded_wait import RecordedWait
from kitlib.inspector.recording_files import (
    FAILURE,
    LOG,
    SNAPSHOTS,
    TASKS,
    VALUES,
    numbered,
    save_values,
    write_header,
)
from kitlib.inspector.timeline import Span
from kitlib.inspector.why_waiting_view import Report
from kitlib.transfer_queue import EventLog, QueueRuntimeError, save_snapshot, take_snapshot, watch
from kitlib.transfer_queue.watched import WatchedQueue

MAX_BYTES = 64_000_000
NUM_SEGMENTS = 8  # of the log
TICK, QUIET = 1.0, 2.0  # seconds


def record(
    queue: Any, folder: str | Path, values: Sequence[str] = (), max_bytes: int = MAX_BYTES, tick: float = TICK
) -> Recorder:
    """Start to record a queue into a fresh folder. Raises RecordingError if it holds a recording already.

    queue:  any queue with a snapshot; one that is watched already is recorded with its log.
    values: fields whose tensors are written with every picture, such as rm_scores; none by default.
    """
    return Recorder(queue, folder, values, max_bytes, tick)


class Recorder:
    """See `record`. Thread-safe; close it, or use it as a context manager.

    tq: what the run has to use. Calls that bypass it are missing from the log, not from the pictures.
    waiting: asked with every picture what `sample` waits for (`replay_buffer.why_waiting`); None: nobody is asked.
    """

    def __init__(self, queue: Any, folder: str | Path, values: Sequence[str], max_bytes: int, tick: float) -> None:
        self.folder = Path(folder)
        write_header(self.folder, time.time())
        is_watched = isinstance(queue, WatchedQueue)
        self.tq = watch(queue) if hasattr(queue, "kv_batch_get") and not is_watched else queue
        self._queue = queue.queue if is_watched else queue  # the recorder's own reads stay out of the log
        self._log: EventLog | None = getattr(self.tq, "log", None)
        self._values = tuple(values)
        self._lock = threading.Lock()
        self._next_event = 0
        self._pictures = _Files(self.folder, (SNAPSHOTS, VALUES), max_bytes // 2)
        self._lines = _Lines(self.folder, max_bytes // 2)
        self._version: int | None = None
        self._last_mark = 0.0
        self.waiting: Callable[[], Report | None] | None = None
        self._last_wait: RecordedWait | None = None
        self._spans: deque[Span] = deque()  # filled by whoever saw them, without the lock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(tick,), name="kitlib-recorder", daemon=True)
        self._thread.start()

    def mark(self, label: str, step: int | None = None, stage_record: StageRecord | None = None) -> None:
        """Keep the queue as it is now under a name. A queue that has not changed since shares the picture before.

        stage_record: of the stage that has just ended, or that begins (seconds is None: no picture is taken).
        """
        with self._lock:
            self._write_events()
            if stage_record is None or stage_record.seconds is not None:
                self._take_picture()
            self._write_mark(label, step, stage_record, self._wait())

    def span(self, span: Span) -> None:
        """Keep a piece of the time line; it is written with the next events. Never waits, from any thread."""
        self._spans.append(span)

    def fail(self, error: BaseException, tasks: str = "") -> Path:
        """Make the recording a post-mortem: a last picture, the error with its traceback, the tasks as text."""
        self._stop.set()  # whatever the queue does while the run is taken down, this picture stays the last
        self.mark("failure")
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.write(FAILURE, text)
        if tasks:
            self.write(TASKS, tasks)
        return self.folder

    def write(self, name: str, text: str) -> None:
        """Put a text file beside the log, such as config.yaml."""
        (self.folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")

    def close(self) -> None:
        """Write what is left and end the thread. May be called twice."""
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._write_events()
            self._lines.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------------- in the lock

    def _write_events(self) -> None:
        for event in self._log.events(self._next_event) if self._log is not None else ():
            self._lines.write("event", vars(event))
            self._next_event = event.number + 1
        while self._spans:
            span = self._spans.popleft()
            self._lines.write("span", {**vars(span), "details": dict(span.details)})
        self._lines.flush()

    def _wait(self) -> RecordedWait | None:
        report = self.waiting() if self.waiting is not None else None
        return None if report is None else RecordedWait.of(report)

    def _write_mark(
        self, label: str, step: int | None, stage_record: StageRecord | None, wait: RecordedWait | None
    ) -> None:
        self._last_mark, self._last_wait = time.time(), wait
        mark = {
            "label": label,
            "step": step,
            "at": self._last_mark,
            "picture": self._pictures.last,
            "record": None if stage_record is None else vars(stage_record),
        }
        self._lines.write("mark", mark if wait is None else {**mark, "waiting": wait.as_dict()})
        self._lines.flush()

    def _take_picture(self) -> bool:
        """True if the queue has changed since the last picture."""
        version = getattr(self._queue, "version", None)
        if version is not None and version == self._version:
            return False
        self._version = version
        number, snapshot = self._pictures.next(), take_snapshot(self._queue)
        save_snapshot(snapshot, numbered(self.folder, SNAPSHOTS, number))
        if self._values:
            save_values(self._queue, snapshot, self._values, numbered(self.folder, VALUES, number))
        self._pictures.added(number)
        return True

    def _run(self, tick: float) -> None:
        while not self._stop.wait(tick):
            try:
                self._look()
            except QueueRuntimeError as gone:  # the run that was looked at has ended
                with self._lock:
                    self._lines.write("mark", {"label": str(gone), "step": None, "at": time.time(), "picture": None})
                return

    def _look(self) -> None:
        """Between marks: events are written, and after a while what is new: the queue, or what is waited for."""
        with self._lock:
            self._write_events()
            if self._stop.is_set() or time.time() - self._last_mark < QUIET:
                return
            has_changed, wait = self._take_picture(), self._wait()
            if has_changed or (wait is not None and not wait.says_the_same(self._last_wait)):
                self._write_mark("", None, None, wait)


class _Files:
    """Numbered files of some kinds; the oldest are removed when together they exceed `max_bytes`."""

    def __init__(self, folder: Path, kinds: tuple[str, ...], max_bytes: int) -> None:
        self.folder, self.kinds, self.max_bytes = folder, kinds, max_bytes
        self.last: int | None = None
        self._sizes: deque[tuple[int, int]] = deque()  # (number, bytes)
        self._num_bytes = 0

    def next(self) -> int:
        return 0 if self.last is None else self.last + 1

    def paths(self, number: int) -> list[Path]:
        return [numbered(self.folder, kind, number) for kind in self.kinds]

    def added(self, number: int) -> None:
        size = sum(path.stat().st_size for path in self.paths(number) if path.exists())
        self.last = number
        self._sizes.append((number, size))
        self._num_bytes += size
        while self._num_bytes > self.max_bytes and len(self._sizes) > 1:
            oldest, size = self._sizes.popleft()
            self._num_bytes -= size
            for path in self.paths(oldest):
                path.unlink(missing_ok=True)


class _Lines:
    """The log: JSON lines in segments of max_bytes / NUM_SEGMENTS, the oldest segment removed first."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._files = _Files(folder, (LOG,), max_bytes)
        self._segment_bytes = max(1, max_bytes // NUM_SEGMENTS)
        self._encode = json.JSONEncoder(default=repr, separators=(",", ":"), check_circular=False).encode
        self._open()

    def _open(self) -> None:
        self._number, self._num_bytes = self._files.next(), 0
        (path,) = self._files.paths(self._number)
        self._file: TextIO = open(path, "w", encoding="utf-8")  # noqa: SIM115 (lives until the segment is full)

    def write(self, kind: str, data: dict[str, Any]) -> None:
        line = self._encode({kind: data}) + "\n"  # ASCII: a character is a byte
        if self._num_bytes and self._num_bytes + len(line) > self._segment_bytes:
            self._finish()
            self._open()
        self._file.write(line)
        self._num_bytes += len(line)

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def _finish(self) -> None:
        self._file.close()
        self._files.added(self._number)

    def close(self) -> None:
        if not self._file.closed:
            self._finish()
