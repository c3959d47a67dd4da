"""The learning curve of a run as a PNG: training reward a step, validation accuracy, zero line and one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kitlib.trainer.progress import accuracy


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The objects of a metrics.jsonl, one a step."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def draw_curve(metrics: list[dict[str, Any]], path: Path, title: str = "") -> Path:
    """Write the PNG. Raises ModuleNotFoundError without matplotlib (extra `notebooks`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    reward = [(row["step"], row["critic/score/mean"]) for row in metrics if "critic/score/mean" in row]
    validation = [(row["step"], value) for row in metrics if (value := accuracy(row)) is not None]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    if reward:
        axes.plot(*zip(*reward, strict=True), color="#888888", linewidth=1, label="training reward (sampled)")
    if validation:
        axes.plot(*zip(*validation, strict=True), color="#0072b2", marker="o", label="validation (held out)")
    axes.set(xlabel="step", ylabel="fraction correct", ylim=(-0.03, 1.03), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
