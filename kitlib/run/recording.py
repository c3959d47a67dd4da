"""The recording of a run: what `kitlib inspect` opens, and the post-mortem when the run fails.

verl 0.9.1 has no counterpart. With `kitlib.record` every queue call and the queue after each stage are written to
`recording/` in the run folder while the run goes on (kitlib.inspector.recorder). When the run fails, the error with its
traceback and the background tasks are put beside them; without `kitlib.record` the folder is made at that moment, with
the queue as it was then and no calls.
"""

from __future__ import annotations

import json
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kitlib.agent_loop.ledger import TaskLedger, TaskRecord
from kitlib.config import Config
from kitlib.contract import StageRecord
from kitlib.inspector import Recorder, record
from kitlib.inspector.recording_files import CONFIG, DOCTOR
from kitlib.trainer.border_doctor import BorderDoctor
from kitlib.trainer.observers import Observer
from kitlib.trainer.parts import make_queue
from kitlib.transfer_queue import QueueProtocol

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


class RunRecorder(Observer):
    """Owns the queue of a run and the recording of it.

    tq: the queue that the run has to use.
    """

    def __init__(self, config: Config, run_dir: Path) -> None:
        self.config, self.run_dir = config, run_dir
        self.tq: QueueProtocol = make_queue(config)
        self.recorder: Recorder | None = None
        self.post_mortem: Path | None = None
        if config.kitlib.record:
            self._start()

    def _start(self) -> Recorder:
        if self.recorder is None:
            self.recorder = record(self.tq, _free(self.run_dir / "recording"), list(self.config.kitlib.record_values))
            self.recorder.write(CONFIG, self.config.to_yaml())
        return self.recorder

    def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
        if self.recorder is not None:
            self.recorder.mark(record.stage, record.global_steps, record)

    def on_fit_end(self, trainer: PPOTrainer) -> None:
        # Called in the `finally` of fit, while the parts still live: the exception in flight is the failure.
        error = sys.exc_info()[1]
        if isinstance(error, Exception):
            self.fail(error, describe_tasks(trainer.agent_loop_manager.ledger))
            self._keep_diagnosis(trainer)

    def _keep_diagnosis(self, trainer: PPOTrainer) -> None:
        for observer in trainer.observers:
            if isinstance(observer, BorderDoctor) and observer.failure is not None:
                self._start().write(DOCTOR, json.dumps(observer.failure.as_dict(), default=str) + "\n")

    def fail(self, error: Exception, tasks: str = "") -> None:
        """Write the post-mortem; the first failure counts."""
        if self.post_mortem is None:
            recorder = self._start()
            recorder.write(CONFIG, self.config.to_yaml())  # with what was derived while the parts were built
            self.post_mortem = recorder.fail(error, tasks)

    def close(self) -> None:
        """End the recorder's thread."""
        if self.recorder is not None:
            self.recorder.close()


def _free(path: Path) -> Path:
    """The path, or path-1, path-2, ...: a run that goes on has a recording of its first part."""
    candidate, number = path, 0
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def describe_tasks(ledger: TaskLedger) -> str:
    """The task ledger as text: what was running, and what had failed, with tracebacks."""
    return "\n".join([*_running(ledger.running()), *_failed(ledger.failures())]) + "\n"


def _running(records: tuple[TaskRecord, ...]) -> Iterator[str]:
    now = time.time()
    yield f"running tasks: {len(records)}"
    for task in records:
        yield f"  {task}  for {now - task.started:.1f} s"


def _failed(records: tuple[TaskRecord, ...]) -> Iterator[str]:
    yield f"failed tasks: {len(records)}"
    first_at: dict[str, TaskRecord] = {}  # a fault of the data fails every session of a batch in one place
    for task in records:
        error = task.exception
        assert error is not None, "a failed task has an exception"
        yield f"  {task}  after {task.seconds or 0:.1f} s: {type(error).__name__}: {error}"
        place = "".join(traceback.format_tb(error.__traceback__))
        if place in first_at:
            yield f"    in the same place as {first_at[place]}"
        else:
            first_at[place] = task
            yield textwrap.indent(place.rstrip(), "    ")
