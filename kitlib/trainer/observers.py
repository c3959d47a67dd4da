"""Who watches a run: an observer is told of stages, steps and validations, and changes nothing.

verl 0.9.1 has loggers only (utils/tracking.py, Tracking), called with the metrics of a step. An observer also sees
the begin and end of each stage, with the trainer at hand, so that an inspector can look into the queue in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kitlib.contract import StageRecord

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


class Observer:
    """Base class; override what you want to hear of."""

    def on_fit_begin(self, trainer: PPOTrainer) -> None:
        """All parts are built; nothing has been submitted."""

    def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
        """A stage begins (`record.seconds is None`) or has ended."""

    def on_step_begin(self, trainer: PPOTrainer) -> None:
        """A step begins; its prompts have not been submitted."""

    def on_step_end(self, trainer: PPOTrainer) -> None:
        """The weights are synced; validation and metrics follow."""

    def on_metrics(self, trainer: PPOTrainer, metrics: dict[str, Any], step: int) -> None:
        """The numbers of a step, or of a validation alone (before the first step)."""

    def on_fit_end(self, trainer: PPOTrainer) -> None:
        """The run has ended, well or badly."""
