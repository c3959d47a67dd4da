"""The one thread of a live widget: it sleeps until the queue changes, then lets the widget look.

    wait_for_change ──> look ──> rest (so that looks are `period` apart and cost at most a quarter of the time)
         ^                                      |
         └──────────────────────────────────────┘     ends on stop(), when the widget is collected, when a look says so

While nothing changes it wakes twice a second to ask whether it should end. It holds the widget weakly and the feed
strongly, so a forgotten widget is collected and its thread ends.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

from kitlib.inspector.widgets.feed import Feed

NAP = 0.5  # seconds between two questions whether to end
SHARE = 4  # rest at least this many times as long as the look took
LAST_LOOK = 10.0  # seconds that a stop waits: a look at a large queue on a busy machine may take some


class Looking(Protocol):
    """What is watched for."""

    def look(self, changed: bool) -> bool:
        """Look at the queue and tell the browser; False ends the thread. changed: it has a new version."""
        ...


class Watcher:
    """Starts with `start`, ends with `stop`; both may be called twice, from any thread."""

    def __init__(self, feed: Feed, looking: Looking, period: float) -> None:
        self._stop = threading.Event()
        arguments = (feed, weakref.ref(looking), period, self._stop)
        self._thread = threading.Thread(target=_watch, args=arguments, name="kitlib inspector", daemon=True)

    @property
    def is_running(self) -> bool:
        """True between start and the end of the thread."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread if it has not been started."""
        if self._thread.ident is None and not self._stop.is_set():
            self._thread.start()

    def stop(self, wait: bool = True) -> None:
        """Ask the thread to end, and wait until it has."""
        self._stop.set()
        if wait and self.is_running and threading.current_thread() is not self._thread:
            self._thread.join(LAST_LOOK)


def _watch(feed: Feed, looking: weakref.ref[Looking], period: float, stop: threading.Event) -> None:
    seen = -1
    while not stop.is_set():
        version = feed.wait(seen, NAP)
        watched = looking()
        if watched is None or stop.is_set():
            return
        began = time.monotonic()
        if not watched.look(changed=version != seen):
            return
        del watched  # not held while resting: the widget may be collected meanwhile
        took = time.monotonic() - began
        stop.wait(max(period - took, SHARE * took) if version != seen else 0.0)
        seen = version
