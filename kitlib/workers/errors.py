"""The error of this room: a batch or a setting that a worker cannot train with."""

from __future__ import annotations

from kitlib.errors import KitError


class WorkerError(KitError, ValueError):
    """The message names the key, field or config key, what was expected, and the call that mends it."""
