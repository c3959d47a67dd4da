"""The command line of make_data: see the package docstring."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kitlib.lessons.make_data.evaluate import accuracy, converse, mean_turns
from kitlib.lessons.make_data.sft import train
from kitlib.lessons.make_data.tasks import TASKS, Task, build_rows, val_problems
from kitlib.lessons.make_data.tokenizer import build_tokenizer


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its place if the block ends well; until then the old one stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield scratch
        os.chmod(scratch, 0o755)  # mkdtemp makes a folder that only its owner may read
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_rows(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
    """{split: rows} as {split}.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for split, split_rows in rows.items():
        pq.write_table(pa.Table.from_pylist(split_rows), folder / f"{split}.parquet", compression="zstd")


def make_model(task: Task, folder: Path, progress: Progress) -> list[str]:
    """Train, save and measure on the problems of val. Returns greedy accuracy, sampled accuracy and turns as text."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # of save_pretrained, which would cut through ours
    tokenizer = build_tokenizer()
    bar = progress.add_task(f"{task.name}: training", total=task.num_sft_steps)
    model = train(task, tokenizer, on_step=lambda loss: progress.update(bar, advance=1))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    problems = val_problems(task)
    greedy = converse(model, tokenizer, problems, task.max_turns, sample=False)
    sampled = converse(model, tokenizer, problems, task.max_turns, sample=True)
    return [f"{accuracy(greedy):.3f}", f"{accuracy(sampled):.3f}", f"{mean_turns(sampled):.2f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m kitlib.lessons.make_data", description="Make the shipped data again.")
    parser.add_argument("--task", choices=sorted(TASKS), action="append", help="only this task (may be repeated)")
    parser.add_argument("--output", type=Path, default=Path("data"), help="folder to write to (default: ./data)")
    parser.add_argument("--no-models", action="store_true", help="only the parquet files, which takes seconds")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # more are slower at this size, and one adds up in the same order every time
    table = Table("task", "train rows", "val rows", "greedy", "sampled", "turns (sampled)")
    with Progress() as progress:
        for task in (TASKS[name] for name in options.task or TASKS):
            rows = build_rows(task)
            with replaced(options.output / task.name) as folder:
                write_rows(folder, rows)
            results = ["-", "-", "-"]
            if not options.no_models:
                with replaced(options.output / "models" / task.name) as folder:
                    results = make_model(task, folder, progress)
            table.add_row(task.name, str(len(rows["train"])), str(len(rows["val"])), *results)
    Console().print(table)


if __name__ == "__main__":
    main()
