"""What a view can be made from: a snapshot that somebody took, or a queue of which one is taken now."""

from __future__ import annotations

from typing import TypeAlias

from kitlib.transfer_queue import QueueProtocol, QueueSnapshot, take_snapshot

Source: TypeAlias = "QueueSnapshot | QueueProtocol"


def snapshot_of(source: Source) -> QueueSnapshot:
    """The snapshot itself, or a fresh one of the queue."""
    return source if isinstance(source, QueueSnapshot) else take_snapshot(source)
