"""What can go wrong in the trainer, each with a sentence for the reader."""

from __future__ import annotations

from kitlib.errors import KitError


class TrainerError(KitError):
    """The trainer cannot start or go on with this config or this state."""


class BadRewardError(TrainerError):
    """A reward is NaN or infinite; the message names the rows."""
