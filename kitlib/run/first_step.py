"""Prints, for the first training step, which fields the queue holds after every stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from kitlib.contract import StageRecord
from kitlib.inspector import stage_table
from kitlib.trainer.observers import Observer
from kitlib.transfer_queue import QueueSnapshot, take_snapshot

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer

_ELSEWHERE = {"validate", "update_weights", "save_checkpoint"}  # they leave the partition `train` as it is


class FirstStepPresence(Observer):
    """Takes a snapshot after each stage of step 1 and prints them as one table when the rows are cleared."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.history: list[tuple[str, QueueSnapshot]] = []

    def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
        if record.global_steps != 1 or record.seconds is None or record.stage in _ELSEWHERE:
            return
        self.history.append((record.stage, take_snapshot(trainer.tq)))
        if record.stage == "clear" or record.error:
            self.console.print(stage_table(self.history, trainer.config, title="step 1"))
