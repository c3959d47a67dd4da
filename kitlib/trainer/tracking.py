"""Loggers: where the numbers of each step go.

verl 0.9.1: utils/tracking.py, Tracking. Names in `trainer.logger`:

    console      one line a step, or a progress bar on a terminal (progress.py)
    jsonl        metrics.jsonl in the run folder, one object a step
    tensorboard  event files in the run folder (package tensorboard)
    wandb        Weights & Biases, with trainer.project_name and trainer.experiment_name (package wandb)

Left out: mlflow, swanlab, vemlp_wandb, clearml, trackio.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kitlib.config import Config
from kitlib.config.checks import names_of_loggers
from kitlib.trainer.errors import TrainerError
from kitlib.trainer.metrics import to_plain
from kitlib.trainer.observers import Observer
from kitlib.trainer.progress import ConsoleProgress
from kitlib.trainer.rollout_dump import append_jsonl

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


class JsonLines(Observer):
    """metrics.jsonl: {"step": n, "<metric>": number, ...}; step 0 is the validation before training."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_metrics(self, trainer: PPOTrainer, metrics: dict[str, Any], step: int) -> None:
        append_jsonl(self.path, [{"step": step, **to_plain(metrics)}])


class TensorBoard(Observer):
    """Scalars for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        self.writer = _package("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def on_metrics(self, trainer: PPOTrainer, metrics: dict[str, Any], step: int) -> None:
        for name, value in to_plain(metrics).items():
            self.writer.add_scalar(name, value, step)

    def on_fit_end(self, trainer: PPOTrainer) -> None:
        self.writer.close()


class WandB(Observer):
    """A Weights & Biases run; its own environment variables (WANDB_MODE, ...) apply."""

    def __init__(self, config: Config, folder: Path) -> None:
        names = {"project": config.trainer.project_name, "name": config.trainer.experiment_name}
        self.run = _package("wandb", "wandb").init(**names, config=config.to_dict(), dir=str(folder))

    def on_metrics(self, trainer: PPOTrainer, metrics: dict[str, Any], step: int) -> None:
        self.run.log(to_plain(metrics), step=step)

    def on_fit_end(self, trainer: PPOTrainer) -> None:
        self.run.finish()


_WITH_FOLDER: dict[str, Callable[[Config, Path], Observer]] = {
    "jsonl": lambda config, folder: JsonLines(folder / "metrics.jsonl"),
    "tensorboard": lambda config, folder: TensorBoard(folder / "tensorboard"),
    "wandb": WandB,
}


def make_loggers(config: Config, run_dir: Path | None) -> list[Observer]:
    """The observers named by `trainer.logger`; all but console need a run folder."""
    loggers: list[Observer] = []
    for name in names_of_loggers(config.trainer.logger):
        if name == "console":
            loggers.append(ConsoleProgress())
        elif run_dir is None:
            raise TrainerError(f"trainer.logger names {name}, which needs a run folder: pass run_dir, or drop the name")
        else:
            loggers.append(_WITH_FOLDER[name](config, run_dir))
    return loggers


def _package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TrainerError(f"trainer.logger names {package}, which is not installed: pip install {package}") from error
