"""Loggers: where the numbers of each step go.

verl 0.9.1: utils/tracking.py, Tracking. Names in `trainer.logger`: `console` (one line a step, or a progress bar on a
terminal: see progress.py) and `jsonl` (metrics.jsonl in the run folder, one object a step). Left out so far:
tensorboard, wandb and the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kitlib.trainer.errors import TrainerError
from kitlib.trainer.metrics import to_plain
from kitlib.trainer.observers import Observer
from kitlib.trainer.rollout_dump import append_jsonl

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


class JsonLines(Observer):
    """metrics.jsonl: {"step": n, "<metric>": number, ...}; step 0 is the validation before training."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_metrics(self, trainer: PPOTrainer, metrics: dict[str, Any], step: int) -> None:
        append_jsonl(self.path, [{"step": step, **to_plain(metrics)}])


def make_loggers(names: Sequence[str], run_dir: Path | None) -> list[Observer]:
    """The observers named by `trainer.logger`. `jsonl` needs a run folder."""
    from kitlib.trainer.progress import ConsoleProgress

    loggers: list[Observer] = []
    for name in names:
        if name == "console":
            loggers.append(ConsoleProgress())
        elif name == "jsonl":
            if run_dir is None:
                raise TrainerError(
                    "trainer.logger names jsonl, which needs a run folder: pass run_dir, or drop it from the list"
                )
            loggers.append(JsonLines(run_dir / "metrics.jsonl"))
        else:
            raise TrainerError(f"trainer.logger names {name!r}; kitlib knows console and jsonl")
    return loggers
