"""`doctor(target)`: look at a queue and say what is wrong, which keys, and the way out.

verl 0.9.1 has no counterpart. The target is anything that holds a picture: a queue of any kind, a snapshot, a
recording or one moment of it, or the path of one of these or of a case file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kitlib.contract import STAGES
from kitlib.inspector.doctor.case_file import read_case, situation_of
from kitlib.inspector.doctor.choices import Choices
from kitlib.inspector.doctor.evidence import with_evidence
from kitlib.inspector.doctor.examine import Examination, examine, joined
from kitlib.inspector.doctor.guess import standing
from kitlib.inspector.doctor.handle import handle_of
from kitlib.inspector.doctor.phase import phase_of
from kitlib.inspector.doctor.report import Report
from kitlib.inspector.doctor.situation import Situation, stage_name
from kitlib.inspector.doctor.values import QueueValues
from kitlib.inspector.judgement import check_stage
from kitlib.inspector.newest import newest_or_warn
from kitlib.inspector.recording import Moment, Recording, open_recording
from kitlib.inspector.scene import newest_position
from kitlib.inspector.source import snapshot_of
from kitlib.transfer_queue import load_snapshot


def doctor(
    target: Any,
    *,
    stage: str | None = None,
    mode: str | None = None,
    config: Any = None,
    global_steps: int | None = None,
    batch: Any = None,
    request: Any = None,
    before: Any = None,
    context: Mapping[str, Any] | None = None,
    waiting: Any = None,
    events: Any = None,
    values: bool = True,
    without: Collection[str] = (),
) -> Report:
    """Examine a queue.

    target:       a queue, a QueueSnapshot, a Recording or a Moment, or the path of a snapshot, a recording, a run
        folder (the newest recording in it) or a case.
    stage:        the stage about to run (a name of kitlib.contract.STAGES, or "resume"); None: guessed from the queue.
    mode, config: the trainer's mode and settings; the config decides what is needed. None: what would depend on it is
        taken from the queue or left out.
    global_steps: the trainer's step; its weights are version global_steps - 1.
    batch:        the handle of the running step (KVBatchMeta); None: rows without a marker.
    request:      a get about to be made (keys, fields, partition_id), or the report of `explain_get` about it.
    before:       an earlier picture, for rules that compare two.
    context:      facts that are not in the queue, such as dp_size, trainer_phase, dataloader_exhausted.
    waiting:      what `replay_buffer.why_waiting()` says of a `sample` that waits: whose tasks still run.
    events:       an event log, for evidence: who wrote it last. By default the target's own.
    values:       False leaves out the rules that read values (a few fields of at most some thousand rows).
    without:      names of rules, kinds or families to leave out.

    Raises UnknownStageError for a stage that the contract does not know. An unknown field, tag or partition in the
    queue is never an error.
    """
    if (name := stage_name(stage)) is not None and name != "resume":
        check_stage(name)
    source, base = look_at(target)
    given: dict[str, Any] = {
        "stage": name,
        "global_steps": global_steps,
        "batch": handle_of(batch),
        "request": handle_of(request),
        "before": None if before is None else snapshot_of(before),
        "context": context,
        "waiting": waiting,
        "choices": Choices(config, mode) if config is not None or mode is not None else None,
    }
    s = replace(base, **{key: value for key, value in given.items() if value is not None})
    situations = [s] if s.stage is not None or s.batch is not None else list(standing(s)) or [s]
    found = [examine(one, values=values, without=without) for one in situations]
    return report_of(source, situations, joined(found), events)


def report_of(target: Any, situations: list[Situation], found: Examination, events: Any = None) -> Report:
    """The report of an examination, with the evidence of the event log."""
    source = events if events is not None else target
    findings = tuple(with_evidence(one, situations[0].snapshot, source) for one in found.findings)
    return Report(
        examination=replace(found, findings=findings),
        stages=tuple(str(one.stage) for one in situations if one.stage),
        is_guessed=situations[0].is_guessed,
        num_keys={name: len(part.keys) for name, part in situations[0].snapshot.partitions.items()},
        target=target,
        config=situations[0].choices.config,
        before=situations[0].before,
        global_steps=situations[0].global_steps,
    )


def look_at(target: Any) -> tuple[Any, Situation]:
    """The source behind a target (what views are made from), and what the target itself tells."""
    if isinstance(target, str | Path):
        return _open(Path(target))
    if isinstance(target, Recording):
        moment = telling_moment(target)
        return moment, _of_recording(target, moment)
    return target, _situation(target)


def _open(path: Path) -> tuple[Any, Situation]:
    if path.is_dir():
        return look_at(open_recording(newest_or_warn(path)))
    if path.suffix == ".json":
        situation = situation_of(read_case(path))
        return situation.snapshot, situation
    return look_at(load_snapshot(path))


def _situation(source: Any) -> Situation:
    snapshot = snapshot_of(source)
    if not hasattr(source, "kv_batch_get"):
        base = Situation(snapshot, has_values=False)
    else:
        base = Situation(snapshot, QueueValues(source), is_coarse=not hasattr(source, "changes"))
    return replace(base, **_of_moment(source)) if isinstance(source, Moment) else base


def telling_moment(recording: Recording) -> Moment:
    """The last moment; of a run that is over or between two steps, with nothing left, the one before it was cleared."""
    last = recording.last
    is_idle = recording.waiting_at(last) is None and not phase_of(recording)
    if is_idle and not any(part.keys for part in last.snapshot().partitions.values()):
        return recording.moments[newest_position(recording)]
    return last


def _of_recording(recording: Recording, moment: Moment) -> Situation:
    """One moment, with the settings, what `sample` waits for, and the phase that the run is in."""
    base = replace(_situation(moment), waiting=recording.waiting_at(moment))
    base = replace(base, context=phase_of(recording))
    if base.waiting is not None and base.stage is None:
        base = replace(base, stage="sample")
    return base if recording.config is None else replace(base, choices=Choices(recording.config))


def _of_moment(moment: Moment) -> dict[str, Any]:
    """The stage that follows the one a moment was taken after."""
    order = list(STAGES)
    if moment.label not in order[:-1]:
        return {"global_steps": moment.step} if moment.step is not None else {}
    following = order[order.index(moment.label) + 1]
    if following in ("generate_sequences", "save_checkpoint", "update_weights", "validate", "clear"):
        return {"global_steps": moment.step}
    return {"stage": following, "global_steps": moment.step}
