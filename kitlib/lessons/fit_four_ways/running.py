"""One run of one mode, real or scripted: its time line and its staleness, and what overlapped with what.

run_mode(overrides, script)   a whole run; with a script, generation and training take times that it says
ModeRun.overlap               seconds in which the server decodes while the model of the trainer is at work
ModeRun.num_in_flight         requests that were still being decoded when the trainer had its batch
pace_table(runs)              seconds a step beside the bound of overlapping
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import mean
from typing import Any, NamedTuple

from kitlib.config import load_config
from kitlib.inspector import View
from kitlib.inspector.render.model import Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.timeline import DRIVER, RANK, Timeline, merged
from kitlib.lessons.fit_four_ways.scripted import Script, put_in_place
from kitlib.trainer.observers import Observer
from kitlib.trainer.task_runner import TaskRunner
from kitlib.trainer.timeline import TimelineRecorder


class Staleness(Observer):
    """Weight versions by which rows lagged, and how many groups were too old to use."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self.worst: list[float] = []
        self.evicted = 0.0

    def on_metrics(self, trainer: Any, metrics: dict[str, Any], step: int) -> None:
        self.means.append(metrics["training/off_policy/trajectory_staleness/mean"])
        self.worst.append(metrics["training/off_policy/trajectory_staleness_worst/max"])
        self.evicted += metrics.get("training/off_policy/evicted_samples", 0)


class RewardCurve(Observer):
    """The mean reward of the answers of each step."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def on_metrics(self, trainer: Any, metrics: dict[str, Any], step: int) -> None:
        self.rewards.append(metrics["critic/score/mean"])


class ModeRun(NamedTuple):
    """What a run has left behind."""

    timeline: Timeline
    staleness: Staleness

    def steps(self, first: int, last: int) -> ModeRun:
        """The time line of these steps alone."""
        return self._replace(timeline=self.timeline.steps(first, last))

    @property
    def overlap(self) -> float:
        """Seconds in which a server decodes while a stage runs on the trainer's model."""
        busy = merged(span for lane in self.timeline.servers for span in self.timeline.of_lane(lane))
        return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in product(busy, self._training()))

    @property
    def overlap_share(self) -> float:
        """Of the seconds in which a stage runs on the trainer's model."""
        return self.overlap / sum(ended - began for began, ended in self._training())

    def _training(self) -> list[tuple[float, float]]:
        return merged(span for span in self.timeline.spans if span.lane.startswith(RANK))

    @property
    def num_in_flight(self) -> float:
        """Requests that were still being decoded when the trainer had got what it waited for; mean over its waits."""
        requests = [span for lane in self.timeline.servers for span in self.timeline.of_lane(lane)]
        ends = [span.ended for span in self.timeline.of_lane(DRIVER) if span.kind == "wait"]
        return mean(sum(span.started < end < span.ended for span in requests) for end in ends)


def run_mode(overrides: Sequence[str], script: Script | None = None, title: str = "") -> ModeRun:
    """One run; with a script on its server and worker, else on the real ones. title: of the time line."""
    config, recorder, staleness, runner = load_config(overrides), TimelineRecorder(), Staleness(), TaskRunner()
    observers = [recorder, staleness]
    trainer: Any
    try:
        if config.trainer.use_v1:
            trainer = runner.start(config, observers=observers)
        else:
            trainer = runner.start_v0(config, observers=observers)
        if script is not None:
            put_in_place(trainer, script)
        trainer.fit()
    finally:
        runner.close()
    timeline = recorder.timeline()
    return ModeRun(replace(timeline, title=title) if title else timeline, staleness)


def pace_table(runs: Mapping[str, ModeRun], num_steps: int) -> View:
    """Seconds a step of each run beside the first one, which does one thing after the other, and beside the bound."""
    first = next(iter(runs.values())).timeline
    bound = (first.t_gen + first.t_train) / first.bound
    names = ("s a step", "speed-up", "of the bound", "trainer idle", "server idle", "staleness, mean / worst")
    rows = []
    for name, (timeline, staleness) in runs.items():
        speed_up = first.seconds / timeline.seconds
        numbers = (
            f"{timeline.seconds / num_steps:.2f}",
            f"{speed_up:.2f}",
            f"{speed_up / bound:.0%}",
            f"{timeline.idle_share(DRIVER):.0%}",
            f"{timeline.idle_share(*timeline.servers):.0%}",
            f"{mean(staleness.means[-num_steps:]):.2f} / {max(staleness.worst):.0f}",
        )
        rows.append((cell(name, State.STRONG), *map(cell, numbers)))
    columns = (Column(""), *(Column(name, align="right") for name in names))
    return View(ViewModel(line((f"the bound is {bound:.2f}", State.STRONG)), tables=(Table(columns, tuple(rows)),)))
