"""What the benchmark scripts share: training runs as they are measured, and a table."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kitlib.config import load_config
from kitlib.run.curve import read_metrics
from kitlib.trainer.progress import accuracy
from kitlib.trainer.task_runner import TaskRunner


@dataclass(frozen=True)
class Run:
    """A finished training run: metrics of each step, held-out accuracies, seconds, peak memory of the process."""

    steps: list[dict[str, float]]
    greedy: float
    sampled: float
    seconds: float
    peak_bytes: int


def validate(overrides: Sequence[str], model: Path | str | None = None, sampled: bool = False) -> float:
    """Held-out accuracy of a model; sampled: 4 samples a prompt at temperature 1."""
    words = [*overrides, "trainer.val_only=true", "trainer.val_before_train=true", "trainer.logger=[]"]
    if model is not None:
        words.append(f"actor_rollout_ref.model.path={model}")
    if sampled:
        prefix = "actor_rollout_ref.rollout.val_kwargs"
        words += [f"{prefix}.temperature=1.0", f"{prefix}.do_sample=true", f"{prefix}.n=4"]
    value = accuracy(TaskRunner().run(load_config(words)))
    assert value is not None
    return value


def run(overrides: Sequence[str]) -> Run:
    """Train, then validate the saved model greedily and sampled."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        began = time.perf_counter()
        words = [*overrides, "trainer.logger=[jsonl]", "trainer.val_before_train=false", "trainer.test_freq=-1"]
        TaskRunner().run(load_config(words), run_dir=run_dir)
        seconds = time.perf_counter() - began
        greedy, sampled = (validate(overrides, run_dir / "model", sampled=mode) for mode in (False, True))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Run(read_metrics(run_dir / "metrics.jsonl"), greedy, sampled, seconds, peak)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table with numbers to three digits."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row))
    Console(width=120).print(table)
