"""Loggers, the profiler, and what an observer is told."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from kitlib.config.checks import LOGGERS
from kitlib.trainer.errors import TrainerError
from kitlib.trainer.observers import Observer
from kitlib.trainer.task_runner import TaskRunner
from kitlib.trainer.tracking import _WITH_FOLDER, JsonLines, make_loggers
from tests.trainer.conftest import small_config


class Diary(Observer):
    """Writes down the order of events."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_fit_begin(self, trainer: Any) -> None:
        self.lines.append("begin")

    def on_step_begin(self, trainer: Any) -> None:
        self.lines.append(f"step {trainer.global_steps}")

    def on_stage(self, trainer: Any, record: Any) -> None:
        self.lines.append(f"{record.stage} {'begins' if record.seconds is None else 'ended'}")

    def on_metrics(self, trainer: Any, metrics: dict[str, Any], step: int) -> None:
        self.lines.append(f"metrics {step}")

    def on_fit_end(self, trainer: Any) -> None:
        self.lines.append("end")


def test_a_run_writes_its_numbers_and_tells_observers_in_order(tmp_path: Path) -> None:
    diary = Diary()
    config = small_config(trainer__logger=["jsonl"], global_profiler__steps=[2], global_profiler__tool="torch")
    TaskRunner().run(config, run_dir=tmp_path, observers=[diary])
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[1]["training/global_step"] == 1
    assert diary.lines[diary.lines.index("begin") + 1] == "validate begins"
    assert diary.lines[-1] == "end"
    first = diary.lines.index("step 1")
    assert diary.lines[first : first + 5] == [
        "step 1",
        "submit_batch_to_rollout begins",
        "submit_batch_to_rollout ended",
        "sample begins",
        "sample ended",
    ]
    assert diary.lines.index("metrics 1") < diary.lines.index("step 2")
    traces = list((tmp_path / "profile").iterdir())
    assert [trace.name for trace in traces] == ["step_2.json"]
    assert json.loads(traces[0].read_text())["traceEvents"]
    assert "algorithm:" in (tmp_path / "config.yaml").read_text()


def test_a_logger_without_a_folder_is_refused() -> None:
    with pytest.raises(TrainerError, match="jsonl, which needs a run folder"):
        make_loggers(small_config(trainer__logger=["jsonl"]), None)


def test_one_logger_may_stand_without_a_list(tmp_path: Path) -> None:
    (logger,) = make_loggers(small_config(trainer__logger="jsonl"), tmp_path)
    assert isinstance(logger, JsonLines)


def test_every_logger_that_a_config_may_name_can_be_made() -> None:
    assert {"console", *_WITH_FOLDER} == set(LOGGERS)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is not None, reason="tensorboard is installed")
def test_a_logger_whose_package_is_missing_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="pip install tensorboard"):
        make_loggers(small_config(trainer__logger=["tensorboard"]), tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs the package tensorboard")
def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    TaskRunner().run(small_config(trainer__logger=["tensorboard"]), run_dir=tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert len(events.Scalars("critic/score/mean")) == 2
