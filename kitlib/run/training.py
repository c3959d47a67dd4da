"""One run from a config to a folder of results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kitlib.config import Config
from kitlib.errors import KitError
from kitlib.run.curve import draw_curve, read_metrics
from kitlib.run.first_step import FirstStepPresence
from kitlib.run.history import RunHistory
from kitlib.run.recording import RunRecorder
from kitlib.run.timeline import PAGE, TRACE, write_timeline
from kitlib.trainer.checkpoint import checkpoint_root, checkpoint_to_resume
from kitlib.trainer.observers import Observer
from kitlib.trainer.progress import accuracy
from kitlib.trainer.rewind import rewind_logs
from kitlib.trainer.task_runner import TaskRunner
from kitlib.trainer.timeline import TimelineRecorder


@dataclass(frozen=True)
class RunResult:
    """Where a run left its results, and its last validation."""

    run_dir: Path
    metrics: dict[str, float]
    seconds: float


def new_run_dir(config: Config) -> Path:
    """`kitlib.run_dir`, or a fresh runs/<date>-<time>.

    A folder that already holds a run is refused, because nothing is overwritten, unless that run is to go on: from a
    checkpoint of its own, or from the beginning if it was to make checkpoints and ended before the first.
    """
    if config.kitlib.run_dir is None:
        return _fresh(Path("runs") / time.strftime("%Y%m%d-%H%M%S"))
    folder = Path(config.kitlib.run_dir)
    if (folder / "metrics.jsonl").exists() and not _goes_on(config, folder):
        raise KitError(
            f"kitlib.run_dir={folder} already holds a run (metrics.jsonl) that cannot be gone on with: it has made no "
            f"checkpoint (trainer.save_freq={config.trainer.save_freq}), or trainer.resume_mode="
            f"{config.trainer.resume_mode} does not name one of its own. Name another folder or remove it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _goes_on(config: Config, folder: Path) -> bool:
    if not config.trainer.use_v1:  # the serial pipeline makes no checkpoints
        return False
    root, checkpoint = checkpoint_root(config, folder), checkpoint_to_resume(config, folder)
    assert root is not None
    if checkpoint is not None:
        return checkpoint.resolve().parent == root.resolve()
    if config.trainer.resume_mode == "auto" and root.exists():
        rewind_logs(config, folder, -1)
        return True
    return False


def _fresh(path: Path) -> Path:
    """The path, or path-1, path-2, ...: two runs may start in one second."""
    candidate, number = path, 0
    while True:
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")


def train(config: Config, console: Console) -> RunResult:
    """Run the config to its end and report to `console`.

    Writes config.yaml, metrics.jsonl, rollouts.jsonl, recording/, checkpoints/ if trainer.save_freq asks for it,
    timeline.html, trace.json, learning_curve.png and model/ into the run folder. A run that fails leaves a
    post-mortem in recording/.
    """
    run_dir = new_run_dir(config)
    console.print(f"run folder {run_dir}", highlight=False)
    if config.trainer.use_v1 and (checkpoint := checkpoint_to_resume(config, run_dir)) is not None:
        console.print(f"going on from {checkpoint}", highlight=False)
    has_queue = config.trainer.use_v1 and not config.trainer.val_only
    timeline = TimelineRecorder()
    observers: list[Observer] = [FirstStepPresence(console), timeline] if has_queue else [timeline]
    began = time.perf_counter()
    try:
        if config.trainer.use_v1:
            metrics = _run_recorded(config, run_dir, observers, console, timeline)
        else:
            metrics = TaskRunner().run(config, run_dir=run_dir, observers=observers)
    finally:
        picture = write_timeline(timeline, run_dir)
    result = RunResult(run_dir, metrics, time.perf_counter() - began)
    _report(result, console)
    console.print(picture)
    return result


def _run_recorded(
    config: Config, run_dir: Path, observers: Sequence[Observer], console: Console, timeline: TimelineRecorder
) -> dict[str, float]:
    """Run, and leave a post-mortem if it fails."""
    recorder = RunRecorder(config, run_dir)
    history = [] if recorder.recorder is None else [RunHistory(recorder.recorder, timeline)]
    try:
        return TaskRunner().run(config, recorder.tq, run_dir, [*observers, *history, recorder])
    except Exception as error:
        recorder.fail(error)
        console.print(f"the run failed; to see how: kitlib inspect {recorder.post_mortem}", soft_wrap=True)
        raise
    finally:
        recorder.close()


def _report(result: RunResult, console: Console) -> None:
    path = result.run_dir / "metrics.jsonl"
    rows = read_metrics(path) if path.exists() else []
    console.print(_table(rows, result.seconds))
    if rows:
        _draw(rows, result.run_dir, console)
    recordings = sorted(result.run_dir.glob("recording*"))  # one for each part of a run that has gone on
    for name, meaning in (
        ("config.yaml", "resolved config"),
        ("metrics.jsonl", "one object a step"),
        ("rollouts.jsonl", "every trajectory"),
        *((path.name, "queue calls and pictures, for kitlib inspect") for path in recordings),
        ("checkpoints", "to go on from with the same kitlib.run_dir"),
        (PAGE, "who was busy when"),
        (TRACE, "the same for ui.perfetto.dev"),
        ("learning_curve.png", "learning curve"),
        ("model", "trained model, Hugging Face format"),
    ):
        if (result.run_dir / name).exists():
            console.print(f"  {result.run_dir / name}  {meaning}", highlight=False, soft_wrap=True)


def _draw(rows: list[dict[str, Any]], run_dir: Path, console: Console) -> None:
    try:
        draw_curve(rows, run_dir / "learning_curve.png")
    except ModuleNotFoundError:
        console.print("no learning curve: matplotlib is not installed (pip install matplotlib)")


def _table(rows: list[dict[str, Any]], seconds: float) -> Table:
    """First and last validation, first and last training reward, time."""
    table = Table("", "first", "last", title="result")
    for name, values in (
        ("validation accuracy", [value for row in rows if (value := accuracy(row)) is not None]),
        ("training reward", [row["critic/score/mean"] for row in rows if "critic/score/mean" in row]),
        ("response length", [row["response_length/mean"] for row in rows if "response_length/mean" in row]),
        ("seconds a step", [row["timing_s/step"] for row in rows if "timing_s/step" in row]),
    ):
        if values:
            table.add_row(name, f"{values[0]:.3f}", f"{values[-1]:.3f}")
    table.add_row("seconds in all", "", f"{seconds:.1f}")
    return table
