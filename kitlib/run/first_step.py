"""Prints, for the first training step, which fields the queue holds after every stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from kitlib.contract import STAGES, StageRecord, needs
from kitlib.inspector import presence
from kitlib.trainer.observers import Observer

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer

_SILENT = {"validate", "update_weights", "save_checkpoint"}  # they leave the partition `train` as it is


def next_stage(name: str, config: object) -> str | None:
    """The stage after `name` that runs under this config and reads or writes the queue; None after the last."""
    names = list(STAGES)
    for candidate in names[names.index(name) + 1 :]:
        if candidate not in _SILENT and needs(candidate, config).runs:
            return candidate
    return None


class FirstStepPresence(Observer):
    """After each stage of step 1: the presence view, judged by the needs of the next stage."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
        if record.global_steps != 1 or record.seconds is None or record.error or record.stage in _SILENT:
            return
        upcoming = next_stage(record.stage, trainer.config)
        view = presence(
            trainer.tq, stage=upcoming, config=trainer.config, title=f"step 1 after {record.stage}", show_tags=False
        )
        self.console.print(view)
        self.console.print()
