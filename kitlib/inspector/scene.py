"""What `kitlib inspect` looks at, and its views by name: a recording at one moment, or a live queue.

verl 0.9.1 has no counterpart.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kitlib.contract import STAGES, needs
from kitlib.errors import KitError
from kitlib.inspector.byte_ledger_view import byte_ledger
from kitlib.inspector.config_view import config_table
from kitlib.inspector.diff_view import diff
from kitlib.inspector.group_board_view import group_board
from kitlib.inspector.key_life_view import key_life
from kitlib.inspector.newest import NothingToInspectError, newest_recording
from kitlib.inspector.partitions_view import partitions
from kitlib.inspector.presence_view import presence
from kitlib.inspector.provenance_view import provenance
from kitlib.inspector.recording import Moment, Recording, open_recording
from kitlib.inspector.recording_files import TASKS
from kitlib.inspector.render.model import ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.source import snapshot_of
from kitlib.inspector.stage_card_view import stage_card
from kitlib.inspector.stage_table_view import stage_table
from kitlib.inspector.staleness_view import staleness
from kitlib.inspector.timeline import begins_late
from kitlib.inspector.timeline_view import time_line
from kitlib.inspector.tokens_view import tokens
from kitlib.inspector.view import View
from kitlib.inspector.why_waiting_view import why_waiting

MOST_TASK_LINES = 60  # of the failure: a batch of sessions that fail alike fills pages
FAILURE_BUDGET = 1_000_000  # bytes: an error is shown whole, however long its words are


@dataclass(frozen=True)
class Scene:
    """A source at one moment, and what the reader asked for.

    recording: None for a live queue. position: of the moment in recording.moments; -1 is the last. settings: the config
    of a run that has not recorded one; without them the contract answers for verl's defaults. tokenizer: folder of the
    model whose tokenizer makes text of tokens; None: the one that the config names. passed_over: a line about newer
    runs that have recorded nothing.
    """

    source: Any
    recording: Recording | None = None
    position: int = -1
    stage: str | None = None
    partition_id: str | None = None
    key: str | None = None
    field: str | None = None
    settings: Any = None
    tokenizer: str | None = None
    passed_over: str = ""

    @classmethod
    def of_recording(cls, recording: Recording, position: int = -1, **asked: Any) -> Scene:
        """Raises RecordingError if it holds no picture yet."""
        last = recording.last
        return cls(recording.moments[position] if recording.moments else last, recording, position, **asked)

    def moved(self, position: int) -> Scene:
        """The same at another moment."""
        assert self.recording is not None, "a live queue has one moment: now"
        return replace(self, source=self.recording.moments[position], position=position)

    @property
    def config(self) -> Any:
        recorded = self.recording.config if self.recording is not None else None
        return recorded if self.settings is None else self.settings

    @property
    def step(self) -> int | None:
        return self.source.step if isinstance(self.source, Moment) else None

    @property
    def next_stage(self) -> str | None:
        """The stage asked for, or the one that follows the moment under this config."""
        if self.stage is not None or not isinstance(self.source, Moment):
            return self.stage
        if self.source.label not in STAGES:
            return self._stage_running()
        later = list(STAGES)[list(STAGES).index(self.source.label) + 1 :]
        return next((name for name in later if _reads(name, self.config)), None)

    def _stage_running(self) -> str | None:
        """At a failure or between marks: the last stage of the log, if it has begun and not ended, or ended badly."""
        records = self.recording.stage_records if self.recording is not None else []
        before = [one for one in records if one.started <= self.source.at]
        last = before[-1] if before else None
        return last.stage if last is not None and (last.seconds is None or last.error) else None

    @property
    def title(self) -> str:
        """Where the picture is from."""
        if self.recording is None:
            return f"live, {time.strftime('%H:%M:%S')}"
        moment, total = self.source, len(self.recording.moments)
        position = self.position % total
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment.at))
        return f"{moment or 'between two stages'}  moment {position + 1} of {total}  {at}  {self.recording.folder}"


def _reads(stage: str, config: Any) -> bool:
    """True for a stage that runs under the config and reads fields of rows (validation reads those of `val`)."""
    resolved = needs(stage, config)
    return resolved.runs and bool(resolved.reads) and stage not in ("validate", "sample")


def open_scene(path: str | Path | None, **asked: Any) -> Scene:
    """The newest moment of a recording, or of the newest recording below the working directory."""
    found = newest_recording("." if path is None else path)
    recording = open_recording(found.path)
    return Scene.of_recording(recording, newest_position(recording), passed_over=found.passed_over, **asked)


def newest_position(recording: Recording) -> int:
    """Where the last moment is, or the one before if the step was cleared and nothing is left to look at."""
    moments = recording.moments
    return len(moments) - (2 if len(moments) > 1 and moments[-1].label == "clear" else 1)


# -------------------------------------------------------------------------------------------------------------- views


def _failure(scene: Scene) -> View:
    if scene.recording is None or not scene.recording.failure:
        return View(ViewModel(line(("failure", State.STRONG), ("the run has not failed", State.GOOD))))
    lines, tasks = (text.rstrip().split("\n") for text in (scene.recording.failure, scene.recording.tasks))
    if len(tasks) > MOST_TASK_LINES:
        tasks[MOST_TASK_LINES:] = [f"... {len(tasks) - MOST_TASK_LINES} more lines in {TASKS} of the recording"]
    head = line(("failure", State.STRONG), (scene.recording.error, State.BAD))
    notes = tuple(cell(one) for one in [*lines, *tasks] if one)
    return View(ViewModel(head, notes=notes), FAILURE_BUDGET)


def _diff(scene: Scene) -> View:
    if scene.recording is None:
        raise NothingToInspectError("diff compares two recorded moments; a live queue has one")
    position = scene.position % len(scene.recording.moments)
    before = scene.recording.moments[max(position - 1, 0)]
    return diff(before.snapshot(), scene.source.snapshot(), title=str(scene.source))


def _asked(scene: Scene, option: str) -> str:
    value = getattr(scene, option)
    if value is None:
        raise NothingToInspectError(f"this view needs --{option}{_example(scene, option)}")
    return value


def _example(scene: Scene, option: str) -> str:
    """A word that would do: keys are shown shortened, and are asked for whole."""
    part = snapshot_of(scene.source).partitions.get(_train(scene))
    if part is None or option not in ("key", "field"):
        return ""
    rows = [key for key in part.keys if part.fields_of(key)]
    known = rows if option == "key" else part.fields
    return f", such as {known[-1]}" if known else ""


def _history(scene: Scene) -> Any:
    if scene.recording is None:
        raise NothingToInspectError("this view reads recorded events; a live queue on Ray keeps none")
    return scene.recording


def _waiting(scene: Scene) -> View:
    recording, moment = _history(scene), scene.source
    before = [event for event in recording.events() if event.started_at <= moment.at]
    return why_waiting(recording.waiting_at(moment), before)


def _train(scene: Scene) -> str:
    return scene.partition_id or "train"


def _stage_table(scene: Scene) -> View:
    recording = _history(scene)
    return stage_table(recording.history(scene.step), scene.config, _train(scene), title=f"step {scene.step}")


def _stage_card(scene: Scene) -> View:
    stage = scene.next_stage or _asked(scene, "stage")
    recording = scene.recording
    records = recording.stage_records if recording is not None else ()
    return stage_card(stage, scene.config, records, recording)


def _config(scene: Scene) -> View:
    if scene.config is None:
        raise NothingToInspectError("no config was recorded")
    return config_table(scene.config, scene.key)


VIEWS: dict[str, Callable[[Scene], View]] = {
    "presence": lambda scene: presence(
        scene.source, scene.next_stage, scene.config, scene.partition_id, key=scene.key, field=scene.field
    ),
    "partitions": lambda scene: partitions(scene.source),
    "groups": lambda scene: group_board(
        scene.source, config=scene.config, partition_id=_train(scene), global_steps=scene.step
    ),
    "staleness": lambda scene: staleness(scene.source, scene.step, scene.config, _train(scene)),
    "stages": _stage_table,
    "diff": _diff,
    "stage": _stage_card,
    "waiting": _waiting,
    "timeline": lambda scene: time_line(whole := _history(scene).timeline(), title=begins_late(whole)),
    "bytes": lambda scene: byte_ledger(_history(scene), _train(scene)),
    "config": _config,
    "failure": _failure,
    "key": lambda scene: key_life(_history(scene), _asked(scene, "key"), scene.partition_id),
    "field": lambda scene: provenance(_history(scene), _asked(scene, "field"), _train(scene)),
    "tokens": lambda scene: tokens(
        scene.source, _asked(scene, "key"), scene.tokenizer, _train(scene), config=scene.config
    ),
}
NEED_OPTION = ("key", "field", "tokens")  # left out where all views are shown


def show(scene: Scene, name: str) -> View:
    """One view by name; what it cannot show is said in its first line. Raises NothingToInspectError for another
    name."""
    if name not in VIEWS:
        near = difflib.get_close_matches(name, VIEWS, n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the views are {', '.join(VIEWS)}"
        raise NothingToInspectError(f"no view {name!r}, and no file or folder of that name; {hint}")
    try:
        return VIEWS[name](scene)
    except KitError as error:
        return View(ViewModel(line((name, State.STRONG), (str(error), State.DIM))))
