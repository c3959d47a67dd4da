"""Events as the views read them: from a log, a watched queue, a recording or a plain list; and who signed them.

verl 0.9.1 has no counterpart. Events are those of kitlib.transfer_queue.events: one a verb call, in order of time,
signed by whoever called `acting_as(stage=..., worker=...)`; the trainer and the workers of kitlib do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from kitlib.errors import KitError
from kitlib.transfer_queue import Event, LastWrite

Events: TypeAlias = Any
"""An EventLog, a queue made by `watch`, a Recording, or a sequence of Event."""

Signed: TypeAlias = "Event | LastWrite"
"""What carries the names of who called, and the thread."""

UNSIGNED = "unsigned"


class NoEventsError(KitError):
    """Something that has no event log was handed to a view that reads one."""


def events_of(source: Events) -> list[Event]:
    """The events of a source, oldest first. Raises NoEventsError for a queue that is not watched."""
    source = getattr(source, "log", source)
    if hasattr(source, "events"):
        return source.events()
    if isinstance(source, Sequence):
        return list(source)
    raise NoEventsError(
        f"a {type(source).__name__} has no event log: use tq = watch(queue), or kitlib.record=true for a run of kitlib"
    )


def stage_of(event: Signed) -> str:
    """The stage that made the call, `unsigned` where nobody said."""
    return event.who.get("stage", UNSIGNED)


def worker_of(event: Signed) -> str:
    """The worker that made the call inside a stage, "" for the driver itself."""
    return event.who.get("worker", "")


def signature(event: Signed) -> str:
    """`compute_advantage`, `generate_sequences (agent-loop-0)`, or `unsigned (MainThread)`."""
    inside = worker_of(event) or ("" if "stage" in event.who else event.thread)
    return f"{stage_of(event)} ({inside})" if inside else stage_of(event)


def seconds_text(seconds: float) -> str:
    """`310 µs`, `4.1 ms`, `12.4 s`."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def moment_text(event: Event, start: float) -> str:
    """Seconds since `start`, with milliseconds."""
    return f"+{event.started_at - start:.3f}"
