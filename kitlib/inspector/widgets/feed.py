"""Where a widget's pictures come from: a queue that is running, snapshots of one that was, or both.

verl 0.9.1 has no counterpart.

    Feed.of(queue)              live: every change can be seen as it happens
    Feed.of(queue, recorder)    live, and the time slider goes back over what the recorder kept
    Feed.of(recording)          whatever has `moments` or `snapshots`, a list of snapshots, or one: the slider only
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kitlib.inspector.source import snapshot_of
from kitlib.inspector.widgets.need import EmptyRecordingError
from kitlib.transfer_queue import Event, PartitionSnapshot, QueueSnapshot

POLL_SECONDS = 1.0  # between two looks at a queue that cannot say when it changes (the package on Ray)


class News(NamedTuple):
    """Keys that were cleared, and a picture of those that were written, up to a version or a little later."""

    version: int
    cleared: frozenset[str]
    part: PartitionSnapshot | None


class Feed:
    """Pictures of a queue. tq: the live queue, None for a recording. The recording may still grow.

    A moment is a QueueSnapshot, or has `snapshot()` and a `str` that says when it was (kitlib.inspector.Recording).
    """

    def __init__(self, tq: Any | None, recording: Any) -> None:
        self.tq = tq
        self._recording = recording

    @classmethod
    def of(cls, source: Any, history: Any = None) -> Feed:
        """The feed of whatever the reader hands in. Raises EmptyRecordingError."""
        is_recording = any(hasattr(source, name) for name in ("moments", "snapshots"))
        if hasattr(source, "snapshot") and not is_recording:
            return cls(source, () if history is None else history)
        feed = cls(None, (source,) if isinstance(source, QueueSnapshot) else source)
        if not feed.moments:
            raise EmptyRecordingError(f"a {type(source).__name__} without a snapshot: there is nothing to look at")
        return feed

    @property
    def is_live(self) -> bool:
        """True if there is a queue that may still change."""
        return self.tq is not None

    @property
    def has_ended(self) -> bool:
        """True once the queue is closed: its last picture is all there will be."""
        return bool(getattr(self.tq, "closed", False))

    @property
    def moments(self) -> Sequence[Any]:
        """The recorded moments, oldest first."""
        found = self._recording
        for name in ("moments", "snapshots"):
            found = getattr(found, name, found)
        if isinstance(found, Sequence):
            return found
        raise EmptyRecordingError(
            f"a {type(self._recording).__name__} is neither a queue nor a recording: pass an object with `moments` or "
            "`snapshots`, a list of QueueSnapshot, or one"
        )

    @property
    def events(self) -> list[Event]:
        """The recorded calls of a watched queue or of a recording, oldest first; [] where nobody recorded."""
        log = getattr(self.tq, "log", None) or self._recording
        return log.events() if hasattr(log, "events") else []

    @property
    def waiting_at(self) -> Callable[[Any], Any] | None:
        """Tells what `sample` waited for at a recorded moment; None where nobody recorded that."""
        return getattr(self._recording, "waiting_at", None)

    def refresh(self) -> None:
        """Read again what has been recorded since."""
        if hasattr(self._recording, "refresh"):
            self._recording.refresh()

    def newest(self) -> QueueSnapshot:
        """The queue as it is now; of a recording the last moment."""
        return snapshot_of(self.moments[-1] if self.tq is None else self.tq)

    def news(self, partition_id: str, since: int) -> News | None:
        """What changed in a partition after version `since`; None if the queue cannot tell, or not so far back."""
        if not hasattr(self.tq, "changes"):
            return None
        changes = self.tq.changes(since, partition_id)  # type: ignore[union-attr]
        if changes.is_complete:
            return None
        written = list(changes.tags.get(partition_id, ()))
        part = self.tq.snapshot(partition_id, written).partitions.get(partition_id)  # type: ignore[union-attr]
        return News(changes.version, frozenset(changes.cleared.get(partition_id, ())), part)

    def picture_of(self, partition_id: str, key: str) -> QueueSnapshot:
        """One row as it is now; only for a queue that has `news`."""
        return self.tq.snapshot(partition_id, [key])  # type: ignore[union-attr]

    def version(self) -> int:
        """Of the queue, before a picture of it is taken."""
        return getattr(self.tq, "version", 0)

    def wait(self, since: int, timeout: float) -> int:
        """Sleep until the queue's version exceeds `since`, for at most `timeout` seconds; returns the version.

        A queue without `wait_for_change` is taken to change every POLL_SECONDS; the look at it finds out.
        """
        if hasattr(self.tq, "wait_for_change"):
            return self.tq.wait_for_change(since, timeout)  # type: ignore[union-attr]
        time.sleep(min(timeout, POLL_SECONDS))
        return int(time.monotonic() / POLL_SECONDS)
