"""The error of this room: an argument that has no place in the formula."""

from __future__ import annotations

from kitlib.errors import KitError


class AlgoError(KitError, ValueError):
    """A formula was asked for something it cannot compute; the message names the argument and the config key to set."""
