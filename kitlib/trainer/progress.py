"""The console logger: a live line on a terminal, one printed line a step elsewhere.

verl 0.9.1: the tqdm bar of PPOTrainer.fit and the console backend of utils/tracking.py. Shown: step, reward,
validation accuracy, response length, seconds by stage, time left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import get_console
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kitlib.trainer.observers import Observer

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer

_TIMERS = {"gen": "gen", "old_log_prob": "old", "adv": "adv", "update_actor": "upd", "update_weights": "sync"}


def accuracy(metrics: dict[str, Any]) -> float | None:
    """Mean of the core validation metric over the data sources, or None if nothing was validated."""
    core = [value for name, value in metrics.items() if name.startswith("val-core/") and "/mean@" in name]
    return sum(core) / len(core) if core else None


def describe(metrics: dict[str, Any]) -> str:
    """One step in a line: reward, response length, seconds by stage."""
    parts = []
    if "critic/score/mean" in metrics:
        parts.append(f"reward {metrics['critic/score/mean']:.3f}")
        parts.append(f"length {metrics['response_length/mean']:.1f}")
    if (value := accuracy(metrics)) is not None:
        parts.append(f"val acc {value:.3f}")
    times = [
        f"{short} {metrics[f'timing_s/{name}']:.2f}" for name, short in _TIMERS.items() if f"timing_s/{name}" in metrics
    ]
    if times:
        parts.append(f"{metrics['timing_s/step']:.2f} s/step ({' '.join(times)})")
    return "  ".join(parts)


class ConsoleProgress(Observer):
    """A rich progress bar with the numbers of the last step; plain lines when the output is not a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or get_console()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def on_fit_begin(self, trainer: PPOTrainer) -> None:
        self.task = self.progress.add_task(
            "step", total=trainer.total_training_steps, completed=trainer.global_steps, numbers=""
        )
        self.progress.start()

    def on_metrics(self, trainer: PPOTrainer, metrics: dict[str, Any], step: int) -> None:
        line = describe(metrics)
        if accuracy(metrics) is not None or not self.console.is_terminal:
            self.console.print(f"step {step:4d}  {line}", highlight=False, markup=False)
        self.progress.update(self.task, completed=step, numbers=line)

    def on_fit_end(self, trainer: PPOTrainer) -> None:
        self.progress.stop()
