"""Who is calling: a stage or a worker says so once, and every write inside is signed with it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

NOBODY: dict[str, str] = {}
_actor: ContextVar[dict[str, str]] = ContextVar("kitlib_queue_actor", default=NOBODY)


def current_actor() -> dict[str, str]:
    """The names that calls are signed with at this point."""
    return _actor.get()


@contextlib.contextmanager
def acting_as(**who: str) -> Iterator[None]:
    """Sign the calls inside with names such as stage= and worker=; inner names add to outer ones."""
    token = _actor.set({**_actor.get(), **who})
    try:
        yield
    finally:
        _actor.reset(token)


class LastWrite(NamedTuple):
    """The last put to a key, of fields or of a tag. at: seconds since the epoch."""

    at: float
    who: dict[str, str]
    thread: str

    @classmethod
    def now(cls) -> LastWrite:
        """A write of this thread at this moment."""
        return cls(time.time(), current_actor(), threading.current_thread().name)
