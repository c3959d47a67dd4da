"""The stage card: five questions about one stage. Who calls it, what it reads, what it writes, who uses that next,
what switches it.

Everything comes from kitlib.contract, resolved for a config; verl's file and symbol stand beside the name. With an
event log, what the stage really read and wrote stands beside it, and where the two differ.

    compute_advantage  trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_advantage
    called by     PPOTrainer.step_once
    reads         uid response_mask rm_scores old_log_probs [num_turns]       in brackets: taken if every row has it
    writes        advantages returns
    next used by  update_actor (advantages), compute_metrics (advantages returns)
    switched by   algorithm.adv_estimator=grpo ..
    was read      uid response_mask rm_scores old_log_probs      as in the contract
    was written   advantages returns my_field                    not in the contract: my_field
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kitlib.contract import FIELDS, STAGES, SWITCHES, Need, Needs, Stage, StageRecord, needs
from kitlib.inspector.history import Events, events_of, stage_of
from kitlib.inspector.judgement import check_stage, short_condition
from kitlib.inspector.render.model import Cell, Column, Span, Table, ViewModel, cell, line
from kitlib.inspector.render.printable import value_of
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.inspector.settings import setting
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.transfer_queue import Event


def stage_card(
    stage: str,
    config: Any = None,
    records: Sequence[StageRecord] = (),
    events: Events | None = None,
    *,
    budget: int = PAGE_BUDGET,
) -> View:
    """The contract of one stage under `config` (None: verl's defaults).

    records: runs of stages as the trainer recorded them; those of this stage are summed up in one line.
    events:  calls signed with the stage (kitlib.inspector.history.Events): which fields it really read and wrote.
    Raises UnknownStageError.
    """
    check_stage(stage)
    spec, resolved = STAGES[stage], needs(stage, config)
    used = Recorded.of(stage, events_of(events)) if events is not None else None
    runs = ("runs", State.GOOD) if resolved.runs else (f"does not run: {spec.runs_when.text}", State.WARN)
    assumed = "verl defaults, no config given" if config is None else "under this config"
    answers = [
        ("called by", cell(spec.called_by)),
        ("reads", _fields(spec.reads, resolved.reads, config)),
        ("writes", _fields(spec.writes, resolved.writes, config)),
        ("tags", line(_tags("reads", spec.tags_read), _tags("writes", spec.tags_written))),
        *zip(["next used by", *[""] * len(STAGES)], _users(stage, config), strict=False),
        ("switched by", Cell(tuple(_switch(key, config) for key in spec.switches))),
        ("this run", _runs([record for record in records if record.stage == stage])),
        *(_recorded(used, resolved) if used is not None else ()),
    ]
    rows = tuple((cell(question, State.DIM), answer) for question, answer in answers if answer.spans)
    model = ViewModel(
        headline=line((stage, State.STRONG), (f"verl 0.9.1: {spec.verl}", State.DIM)),
        facts=line(spec.meaning, runs, (assumed, State.DIM)),
        tables=(Table((Column(""), Column("", flow=True)), rows, row_noun="answers"),),
        notes=tuple(cell(note, State.DIM) for note in _notes(spec, config)),
    )
    return View(model, budget)


def _fields(declared: Sequence[Need], required: Sequence[str], config: Any) -> Cell:
    """Fields under this config: required ones strong, those taken or written if possible in brackets."""
    spans = []
    for need in declared:
        if need.when.holds(config):
            sure = need.field in required
            spans.append(
                Span(need.field if sure else f"[{need.field}]", State.STRONG if sure else State.PLAIN, need.note)
            )
    return Cell(tuple(spans)) if spans or not declared else cell("nothing under this config", State.DIM)


def _tags(verb: str, tags: Sequence[str]) -> str:
    return f"{verb} {' '.join(tags)}" if tags else ""


def _users(stage: str, config: Any) -> list[Cell]:
    """A line for each later stage that runs under this config and reads what this one writes."""
    written, later = set(needs(stage, config).writes), list(STAGES)[list(STAGES).index(stage) + 1 :]
    users = []
    for name in later:
        resolved = needs(name, config)
        used = [field for field in (*resolved.reads, *resolved.optional) if field in written]
        if used and resolved.runs:
            users.append(line((name, State.STRONG), *used))
    return users


def _switch(key: str, config: Any) -> Span:
    """`key=value`, or the key alone where neither the config nor the contract knows a value."""
    value = setting(config, key, SWITCHES.get(key, ...))
    return Span(key if value is ... else f"{key}={value_of(value)}")


def _runs(records: Sequence[StageRecord]) -> Cell:
    done = [record for record in records if record.seconds is not None]
    if not done:
        return Cell()
    last = done[-1]
    failed = [record for record in done if record.error]
    took = f"{1000 * (last.seconds or 0):.1f} ms" + (f" for {count(last.num_rows, 'row')}" if last.num_rows else "")
    times = f"{count(len(done), 'run')}; the last took {took}"
    return line(times, (f"{len(failed)} failed: {value_of(failed[-1].error)}" if failed else "", State.BAD))


@dataclass(frozen=True)
class Recorded:
    """The fields that calls of one stage read and wrote, in the order of the contract."""

    num_calls: int
    read: tuple[str, ...]
    written: tuple[str, ...]

    @classmethod
    def of(cls, stage: str, events: Sequence[Event]) -> Recorded:
        own = [event for event in events if stage_of(event) == stage and event.error is None]
        read = dict.fromkeys(name for event in own if not event.is_put for name in event.fields)
        written = dict.fromkeys(name for event in own if event.is_put for name in event.fields)
        return cls(len(own), tuple(sorted(read, key=_field_order)), tuple(sorted(written, key=_field_order)))


def _field_order(field: str) -> int:
    return list(FIELDS).index(field) if field in FIELDS else len(FIELDS)


def _recorded(used: Recorded, resolved: Needs) -> tuple[tuple[str, Cell], ...]:
    """What was really read and written; what the contract does not know, and what it asks for in vain, is loud."""
    if not used.num_calls:
        return (("was recorded", cell("no call signed with this stage in the log", State.DIM)),)
    spec = STAGES[resolved.stage]
    may_read = {need.field for need in (*spec.reads, *spec.writes)}  # what it has just written it may read back
    may_write = {need.field for need in spec.writes}
    return (
        ("was read", _against(used.read, may_read, resolved.reads)),
        ("was written", _against(used.written, may_write, resolved.writes)),
    )


def _against(used: Sequence[str], allowed: set[str], required: Sequence[str]) -> Cell:
    spans = [Span(name, State.PLAIN if name in allowed else State.WARN) for name in used]
    if strangers := [name for name in used if name not in allowed]:
        spans.append(Span(f"not in the contract: {', '.join(strangers)}", State.WARN))
    if absent := [name for name in required if name not in used]:
        spans.append(Span(f"in the contract, but not here: {', '.join(absent)}", State.WARN))
    if not (strangers or absent):
        spans.append(Span("as in the contract", State.GOOD))
    return Cell(tuple(spans))


def _notes(spec: Stage, config: Any) -> list[str]:
    """Fields that other settings would bring in, and the words of the contract about single fields."""
    declared = (*spec.reads, *spec.writes)
    active = [need for need in declared if need.when.holds(config)]
    others = [f"{need.field} ({short_condition(need.when.text)})" for need in declared if need not in active]
    remarks: dict[str, list[str]] = {}
    for need in active:
        if need.note:
            remarks.setdefault(need.note, []).append(need.field)
    also = [f"with other settings also: {', '.join(dict.fromkeys(others))}"] if others else []
    return [*also, *(f"{', '.join(dict.fromkeys(fields))}: {note}" for note, fields in remarks.items())]
