"""Pace: costly work that must not keep a core busy, however large the queue is."""

from __future__ import annotations

import time
from types import TracebackType

AT_LEAST = 1.0  # seconds between two runs
SHARE = 0.1  # of the time that runs may take


class Pace:
    """Says when work that was asked for may be done again: `with pace:` around the work measures it."""

    def __init__(self, at_least: float = AT_LEAST) -> None:
        self._at_least = at_least
        self._is_wanted = False
        self._not_before = 0.0
        self._began = 0.0

    def request(self) -> None:
        """The work is behind."""
        self._is_wanted = True

    def is_due(self) -> bool:
        """True if the work is behind and its time has come."""
        return self._is_wanted and time.monotonic() >= self._not_before

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        now = time.monotonic()
        self._is_wanted = False
        self._not_before = now + max(self._at_least, (now - self._began) / SHARE)
