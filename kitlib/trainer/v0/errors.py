"""What can go wrong with a DataProto and in the serial pipeline."""

from __future__ import annotations

from kitlib.trainer.errors import TrainerError


class DataProtoError(TrainerError, ValueError):
    """Columns that do not fit together; the message names the column and what was expected."""


class SerialPipelineError(TrainerError):
    """A config or a session that the serial pipeline has no place for; the message names the way out."""
