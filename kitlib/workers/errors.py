"""The errors of this room: a batch or a setting that a worker cannot train with, a checkpoint that does not load."""

from __future__ import annotations

from kitlib.errors import KitError


class WorkerError(KitError, ValueError):
    """The message names the key, field or config key, what was expected, and the call that mends it."""


class CheckpointError(KitError):
    """A checkpoint that cannot be written, found or read; the message names the file and what is wrong with it."""
