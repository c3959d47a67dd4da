"""Errors of the store. Each is also the builtin error that the TransferQueue package raises in the same case.

Code written for the package (`except ValueError`) keeps working, and the message says which key, field or argument is
meant.
"""

from __future__ import annotations

from kitlib.errors import KitError


class QueueError(KitError):
    """Any error that the store raises on purpose."""


class QueueValueError(QueueError, ValueError):
    """A wrong argument: unknown keys, lengths that do not match, duplicates."""


class QueueTypeError(QueueError, TypeError):
    """An argument of a kind that the store cannot take."""


class QueueRuntimeError(QueueError, RuntimeError):
    """The call was well formed but could not be carried out: a closed queue, a parser that raised."""


class NoQueueError(QueueRuntimeError, AssertionError):
    """A verb of the module drop_in before its init() (the package raises the one or the other)."""


class QueueFullError(QueueRuntimeError):
    """A put that would exceed the capacity in rows or in bytes; nothing of it was stored."""


class QueueTimeoutError(QueueError, TimeoutError):
    """Too few rows became ready in time; says how many are."""


class MissingFieldsError(QueueValueError):
    """A strict read that would have come back short: names every missing key and every missing (key, field)."""


class StrictWriteError(QueueValueError):
    """A put that a StrictQueue refused: names every problem; nothing was stored."""


class QueueFileError(QueueValueError):
    """A snapshot, event log or checkpoint that is truncated, foreign or of a later version."""
