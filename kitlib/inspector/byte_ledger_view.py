"""The byte ledger: which tensor bytes moved in which stage, and what a batch that carries everything would have moved.

verl 0.9.1: trainer/ppo/ray_trainer.py sends one DataProto from the driver to the workers and back in every stage; the
V1 trainer sends keys and lets both sides pull. Needs the event log with signed calls (kitlib signs).

    the driver moved 310 KB; a DataProto that carries every field would have moved 4.1 MB through it: 13 times as much
    stage                 driver read  driver wrote  workers read  workers wrote  DataProto
    generate_sequences              -             -             -         205 KB     310 KB
    compute_old_log_prob        88 KB         31 KB        120 KB          60 KB     402 KB

What the last column counts, per stage: of the agent loop, every field it wrote, as the batch would have come back; of
a stage whose workers read rows, every tensor field that those rows held, sent out, and what the workers wrote, sent
back; of a stage that the driver does alone, nothing. A DataProto is dense, so each row counts as long as the longest
row of its field in this log (verl pads to the configured maximum: at least as much). Python objects have no size in
the log and count in no column.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kitlib.contract import STAGES
from kitlib.inspector.history import Events, events_of, stage_of, worker_of
from kitlib.inspector.judgement import group_of
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.shapes import size_text
from kitlib.inspector.values import INSPECTOR
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.transfer_queue import Event

AGENT_LOOP = "generate_sequences"
OLD = "(written before the log)"


@dataclass
class _Account:
    """Bytes of one stage, or of one field."""

    driver_read: int = 0
    driver_wrote: int = 0
    workers_read: int = 0
    workers_wrote: int = 0
    dataproto: int = 0
    stages: dict[str, None] = field(default_factory=dict)

    def add(self, event: Event, num_bytes: int) -> None:
        side = "workers" if worker_of(event) else "driver"
        name = f"{side}_{'wrote' if event.is_put else 'read'}"
        setattr(self, name, getattr(self, name) + num_bytes)
        self.stages[stage_of(event)] = None

    @property
    def driver(self) -> int:
        return self.driver_read + self.driver_wrote


@dataclass
class _Ledger:
    """stages, fields: accounts by name. What lies where while the log is replayed: sizes[key][field] in bytes."""

    longest: Counter[str]
    stages: dict[str, _Account] = field(default_factory=lambda: defaultdict(_Account))
    fields: dict[str, _Account] = field(default_factory=lambda: defaultdict(_Account))
    sizes: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def replay(self, own: Iterable[Event]) -> None:
        for event in own:
            if event.verb == "kv_clear":
                for key in event.keys:
                    self.sizes.pop(key, None)
            elif event.is_put:
                self._put(event)
            elif event.fields:
                self._got(event)

    def _put(self, event: Event) -> None:
        account = self.stages[stage_of(event)]
        for name, column in event.fields.items():
            if column is None or not column.num_bytes:
                continue
            for row, key in enumerate(event.keys):
                self.sizes[key][name] = column.cell(row).num_bytes
            account.add(event, column.num_bytes)
            self.fields[name].add(event, column.num_bytes)
            if worker_of(event):
                account.dataproto += self.longest[name] * len(event.keys)

    def _got(self, event: Event) -> None:
        account = self.stages[stage_of(event)]
        account.add(event, event.num_bytes)
        known = Counter({name: sum(self.sizes[key].get(name, 0) for key in event.keys) for name in event.fields})
        for name, num_bytes in known.items():
            if num_bytes:
                self.fields[name].add(event, num_bytes)
        if (rest := event.num_bytes - known.total()) > 0:
            self.fields[OLD].add(event, rest)
        if worker_of(event) and stage_of(event) != AGENT_LOOP:
            account.dataproto += sum(self.longest[name] for key in event.keys for name in self.sizes[key])


def byte_ledger(events: Events, partition_id: str = "train", *, title: str = "", budget: int = PAGE_BUDGET) -> View:
    """Bytes by stage and by field, read and written by the driver and by its workers.

    events: an EventLog, a watched queue, a recording or a list of Event (kitlib.inspector.history.Events).
    """
    own = [
        event
        for event in events_of(events)
        if event.partition_id == partition_id and event.error is None and stage_of(event) != INSPECTOR
    ]
    longest: Counter[str] = Counter()
    for event in own:
        for name, column in event.fields.items():
            if column is not None and event.is_put:
                size = column.row_bytes * (1 if column.lengths is None else max(column.lengths, default=0))
                longest[name] = max(longest[name], size)
    ledger = _Ledger(longest)
    ledger.replay(own)
    keys = {key for event in own if event.is_put and event.fields for key in event.keys}
    model = ViewModel(
        headline=line((partition_id, State.STRONG), _verdict(ledger)),
        facts=line(title, (f"{count(len(own), 'event')}, {count(len(keys), 'row')}", State.DIM)),
        tables=tuple(table for table in (_stage_table(ledger), _field_table(ledger)) if table.rows),
        notes=tuple(cell(note, State.DIM) for note in _notes(ledger)),
    )
    return View(model, budget)


def _verdict(ledger: _Ledger) -> tuple[str, State]:
    moved = sum(account.driver for account in ledger.stages.values())
    dataproto = sum(account.dataproto for account in ledger.stages.values())
    if not dataproto:
        return f"the driver moved {size_text(moved)}; no worker signed a call, so there is no DataProto to compare", (
            State.WARN
        )
    said = f"the driver moved {size_text(moved)}; a DataProto with every field would have moved {size_text(dataproto)}"
    times = f"{dataproto / moved:.1f} times as much" if moved else "the driver touched no tensor"
    return f"{said} through it: {times}", State.GOOD if moved < dataproto else State.WARN


def _order(stage: str) -> int:
    return list(STAGES).index(stage) if stage in STAGES else len(STAGES)


def _stage_table(ledger: _Ledger) -> Table:
    heads = ("driver read", "driver wrote", "workers read", "workers wrote", "DataProto")
    rows = [(name, ledger.stages[name]) for name in sorted(ledger.stages, key=_order)]
    totals = [sum(own) for own in zip(*(_numbers(account) for _, account in rows), strict=True)]
    lines = [(cell(name), *map(_size, _numbers(account))) for name, account in rows if any(_numbers(account))]
    if len(lines) > 1:
        lines.append((cell("all", State.STRONG), *map(_size, totals)))
    columns = (Column("stage"), *(Column(head, align="right") for head in heads))
    return Table(columns, tuple(lines), row_noun="stages")


def _numbers(account: _Account) -> tuple[int, ...]:
    return (
        account.driver_read,
        account.driver_wrote,
        account.workers_read,
        account.workers_wrote,
        account.dataproto,
    )


def _field_table(ledger: _Ledger) -> Table:
    columns = (
        Column("field"),
        Column("group"),
        Column("longest row", align="right"),
        *(Column(head, align="right") for head in ("driver read", "driver wrote", "workers read", "workers wrote")),
        Column("stages", flow=True),
    )
    by_size = sorted(ledger.fields.items(), key=lambda pair: -sum(_numbers(pair[1])))
    rows = tuple(
        (
            cell(name),
            cell(group_of(name) if name != OLD else "", State.DIM),
            _size(ledger.longest[name]),
            *map(_size, _numbers(account)[:4]),
            cell(listed(list(account.stages), 4), State.DIM),
        )
        for name, account in by_size
    )
    return Table(columns, rows, row_noun="fields")


def _size(num_bytes: int) -> Cell:
    return cell(size_text(num_bytes)) if num_bytes else cell("-", State.DIM)


def _notes(ledger: _Ledger) -> list[str]:
    notes = [
        "DataProto: dense, each row as long as the longest of its field; sent to the workers of a stage with every "
        "field it holds, and back with what they wrote",
        "Python objects (uid, raw_prompt, extra_info, ..) have no size in the log and count nowhere",
    ]
    if "unsigned" in ledger.stages:
        notes.append("calls outside a stage are unsigned: wrap them in acting_as(stage=...)")
    return notes
