"""The provenance of a field: who wrote it, when, on how many rows, and over what.

verl 0.9.1 has no counterpart; the store keeps no version of a cell. Needs the event log.

    entropy  train  128 rows carry it, last written by compute_old_log_prob over float32 J[31..47] of the same stage
    s        by                    worker                 rows  wrote             over              is there now
    +0.412   compute_old_log_prob                          128  float32 J[11..16] float32 J[31..47]          128
    +0.401   compute_old_log_prob  ActorRolloutRefWorker   128  float32 J[31..47] -                            0
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kitlib.inspector.history import Events, events_of, moment_text, signature, stage_of, worker_of
from kitlib.inspector.judgement import writers
from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.printable import name_of
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, joined, listed
from kitlib.inspector.shapes import describe_cells
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.transfer_queue import Cell as Look
from kitlib.transfer_queue import Event

NUM_KEYS = 2


@dataclass
class _Wave:
    """Writes of one field that belong together: same stage, over the same writer, until one of the keys comes again or
    is cleared."""

    first: Event
    last: Event
    over: str  # signature of what was written over, "" for fresh cells
    workers: dict[str, None] = field(default_factory=dict)  # an ordered set
    cells: dict[str, Look] = field(default_factory=dict)  # key -> what was written
    before: list[Look] = field(default_factory=list)
    is_closed: bool = False
    num_left: int = 0  # rows on which this write is what a read would find


@dataclass(frozen=True)
class _Latest:
    wave: _Wave
    look: Look


def provenance(
    events: Events,
    field: str,
    partition_id: str = "train",
    key: str | None = None,
    *,
    title: str = "",
    budget: int = PAGE_BUDGET,
) -> View:
    """Every write of a field, newest first; writes of many rows by one stage share a line.

    events: an EventLog, a watched queue, a recording or a list of Event (kitlib.inspector.history.Events).
    key:    only the writes of this row, one a line.
    A field that nobody wrote is said in the first line, with who writes it by the contract.
    """
    every = events_of(events)
    own = [event for event in every if event.partition_id == partition_id and event.error is None]
    waves, latest = _replay(own, field, key)
    if not waves:
        return View(ViewModel(_unwritten(own, field, partition_id, key)), budget)
    names = ShortNames(key for wave in waves for key in wave.cells)
    start = every[0].started_at
    columns = (
        Column("s", align="right", hover="since the first event of the log"),
        Column("by"),
        Column("worker"),
        Column("rows", align="right"),
        Column("wrote"),
        Column("over", flow=True),
        Column("is there now", align="right", hover="rows on which nothing was written later, and not cleared"),
        Column("keys"),
    )
    rows = tuple(_row(wave, names, start) for wave in reversed(waves))
    subject = field if key is None else f"{field} of {names.key(key)}"
    model = ViewModel(
        headline=line((subject, State.STRONG), partition_id, _verdict(waves, latest)),
        facts=line(title, (f"{count(len(own), 'event')} in this partition", State.DIM)),
        tables=(Table(columns, rows, num_fixed=2, row_noun="writes"),),
        notes=tuple(cell(note, State.DIM) for note in (*_contract(field, waves), names.note()) if note),
    )
    return View(model, budget)


def _replay(own: Iterable[Event], field: str, key: str | None) -> tuple[list[_Wave], dict[str, _Latest]]:
    """The waves in order of time, and per living key the write that a read would find."""
    waves: list[_Wave] = []
    latest: dict[str, _Latest] = {}
    for event in own:
        keys = [name for name in event.keys if key in (None, name)]
        if event.verb == "kv_clear":
            for name in keys:
                if (gone := latest.pop(name, None)) is not None:
                    gone.wave.is_closed = True
        elif event.is_put and (column := event.fields.get(field)) is not None:
            position = {name: row for row, name in enumerate(event.keys)}
            for name in keys:
                wave = _wave_for(waves, event, name, latest.get(name))
                wave.last, wave.cells[name] = event, column.cell(position[name])
                wave.workers[worker_of(event)] = None
                latest[name] = _Latest(wave, wave.cells[name])
    for one in latest.values():
        one.wave.num_left += 1
    return waves, latest


def _wave_for(waves: list[_Wave], event: Event, name: str, before: _Latest | None) -> _Wave:
    over = signature(before.wave.last) if before else ""
    wave = waves[-1] if waves else None
    if (
        wave is None
        or wave.is_closed
        or name in wave.cells
        or wave.over != over
        or stage_of(wave.last) != stage_of(event)
    ):
        wave = _Wave(event, event, over)
        waves.append(wave)
    if before:
        wave.before.append(before.look)
    return wave


def _row(wave: _Wave, names: ShortNames, start: float) -> tuple[Cell, ...]:
    workers = [worker for worker in wave.workers if worker]
    wrote, before = describe_cells(set(wave.cells.values())), describe_cells(set(wave.before))
    changed = wave.over and wrote != before
    over = line((before, State.WARN if changed else State.PLAIN), (f"by {wave.over}", State.DIM))
    return (
        cell(moment_text(wave.first, start)),
        cell(stage_of(wave.last)),
        cell(listed(workers, 2)),
        cell(f"{len(wave.cells):,}"),
        cell(wrote),
        over if wave.over else cell("-", State.DIM),
        cell(f"{wave.num_left:,}", State.STRONG if wave.num_left else State.DIM),
        Cell(tuple(names.spans(list(wave.cells), NUM_KEYS))),
    )


def _verdict(waves: Sequence[_Wave], latest: dict[str, _Latest]) -> tuple[str, State]:
    if not latest:
        return f"no row carries it now; last written by {stage_of(waves[-1].last)}, cleared since", State.DIM
    current = [wave for wave in waves if wave.num_left]
    carry = f"{count(len(latest), 'row')} {'carries' if len(latest) == 1 else 'carry'} it"
    said = f"{carry}, last written by {joined(list(dict.fromkeys(stage_of(wave.last) for wave in current)))}"
    overs = sorted({wave.over for wave in current if wave.over})
    return (f"{said}, over what {joined(overs)} wrote", State.WARN) if overs else (f"{said}, once", State.GOOD)


def _unwritten(own: Sequence[Event], field: str, partition_id: str, key: str | None) -> Cell:
    known = sorted({name for event in own if event.is_put for name in event.fields})
    near = difflib.get_close_matches(field, known, n=3)
    hint = f"; near: {listed(near)}" if near else ""
    by = joined(writers(field), "or")
    said = f"written by nobody in {count(len(own), 'event')}{f' on {name_of(key)}' if key else ''}{hint}"
    return line(
        (field, State.STRONG),
        partition_id,
        (said, State.WARN),
        (f"by the contract it is written by {by}" if by else "", State.DIM),
    )


def _contract(field: str, waves: Sequence[_Wave]) -> list[str]:
    """A writer that the contract does not know."""
    expected = writers(field)
    strangers = sorted({stage_of(wave.last) for wave in waves} - {*expected, "unsigned", "balance_batch"})
    if not expected:
        return ["the contract does not know this field"]
    return [f"the contract has it written by {joined(expected, 'or')}, not by {joined(strangers)}"] if strangers else []
