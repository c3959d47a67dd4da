"""The life of a key: every write, read, tag change and clear of it, with the stage and the worker that did it.

verl 0.9.1 has no counterpart; there a lost row leaves no trace. Needs the event log, no queue and no snapshot.

    f3a1_0_0  train  written 3 times, read 5 times; cleared by clear at +1.204
    s after the first  what   by                  worker        details
    +0.000             put    generate_sequences  agent-loop-0  25 fields, 2.1 KB: prompts, responses, .. (+23)
    +0.311             read   compute_advantage                 3 fields: uid, response_mask, rm_scores
    +0.318             put    compute_advantage                 2 fields, 160 bytes: advantages, returns
    +1.204             clear  clear
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from kitlib.inspector.history import Events, events_of, moment_text, seconds_text, stage_of, worker_of
from kitlib.inspector.render.model import Cell, Column, Span, Table, ViewModel, cell, line
from kitlib.inspector.render.printable import name_of, value_of
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.shapes import describe_cells, size_text
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.transfer_queue import Cell as Look
from kitlib.transfer_queue import Event

NUM_FIELDS = 4  # named in one line
READS = ("kv_batch_get", "kv_batch_get_by_meta")


def key_life(
    events: Events, key: str, partition_id: str | None = None, *, title: str = "", budget: int = PAGE_BUDGET
) -> View:
    """Every event of one key, oldest first.

    events: an EventLog, a watched queue, a recording or a list of Event (kitlib.inspector.history.Events).
    partition_id: only this partition; None shows all in which the key lived.
    A key that no event names is said in the first line, with near ones.
    """
    every = events_of(events)
    own = [event for event in every if key in event.keys and partition_id in (None, event.partition_id)]
    if not own:
        return View(ViewModel(_unknown(every, key)), budget)
    where = sorted({event.partition_id or "?" for event in own})
    lines = list(_lines(own, key, with_partition=len(where) > 1))
    columns = (
        Column("s after the first", align="right"),
        Column("what"),
        Column("by"),
        Column("worker"),
        Column("details", flow=True),
        Column("took", align="right"),
    )
    model = ViewModel(
        headline=line((name_of(key), State.STRONG), ", ".join(where), _verdict(own)),
        facts=line(title, (f"{seconds_text(own[-1].started_at - own[0].started_at)} of life in this log", State.DIM)),
        tables=(Table(columns, tuple(lines), num_fixed=2, row_noun="events"),),
        notes=_notes(every),
    )
    return View(model, budget)


def _unknown(every: Sequence[Event], key: str) -> Cell:
    known = list(dict.fromkeys(name for event in every for name in event.keys))
    near = difflib.get_close_matches(key, known, n=3)
    hint = f"; near: {listed(near)}" if near else ""
    said = f"no event of {count(len(every), 'event')} names this key{hint}"
    return line((name_of(key), State.STRONG), (said, State.WARN))


def _verdict(own: Sequence[Event]) -> tuple[str, State]:
    done = [event for event in own if event.error is None]
    numbers = {
        "written": sum(bool(event.is_put and event.fields) for event in done),
        "tagged": sum(event.is_put and not event.fields for event in done),
        "read": sum(event.verb in READS for event in done),
        "failed": len(own) - len(done),
    }
    said = ", ".join(f"{verb} {count(number, 'time')}" for verb, number in numbers.items() if number)
    last = done[-1] if done else None
    if last is not None and last.verb == "kv_clear":
        return f"{said}; cleared by {stage_of(last)} at {moment_text(last, own[0].started_at)}", State.DIM
    revived = any(event.verb == "kv_clear" for event in done)
    return (f"{said}; written again after it was cleared", State.WARN) if revived else (f"{said}; alive", State.GOOD)


def _notes(every: Sequence[Event]) -> tuple[Cell, ...]:
    first = every[0].number
    if first == 0:
        return ()
    return (cell(f"the log begins at event {first:,}: what was before has fallen out of its ring", State.DIM),)


# -------------------------------------------------------------------------------------------------------------- lines


def _lines(own: Sequence[Event], key: str, with_partition: bool) -> Iterator[tuple[Cell, ...]]:
    """A line an event; what lay there before is remembered, so that an overwrite and a changed tag can be told."""
    looks: dict[tuple[str | None, str], Look] = {}
    tags: dict[str | None, dict[str, Any]] = {}
    for event in own:
        what, state = _what(event)
        details = _details(event, key, looks, tags)
        where = [Span(event.partition_id or "?", State.DIM)] if with_partition else []
        if event.error is not None:
            details = [Span(value_of(event.error, 200), State.BAD)]
        yield (
            cell(moment_text(event, own[0].started_at)),
            cell(what, State.BAD if event.error else state),
            cell(stage_of(event)),
            cell(worker_of(event)),
            Cell((*where, *details)),
            cell(seconds_text(event.seconds), State.DIM),
        )


def _what(event: Event) -> tuple[str, State]:
    if event.verb == "kv_clear":
        return "clear", State.WARN
    if event.is_put:
        return ("put", State.HIGH) if event.fields else ("tag", State.LOW)
    return "read", State.PLAIN


def _details(
    event: Event, key: str, looks: dict[tuple[str | None, str], Look], tags: dict[str | None, dict[str, Any]]
) -> list[Span]:
    where = event.partition_id
    if event.verb == "kv_clear":
        for cell_key in [known for known in looks if known[0] == where]:
            del looks[cell_key]
        tags.pop(where, None)
        return [Span(f"with {count(len(event.keys) - 1, 'other key')}" if len(event.keys) > 1 else "", State.DIM)]
    if not event.is_put:
        return [Span(f"{count(len(event.fields), 'field')}: {listed(list(event.fields), NUM_FIELDS)}")]
    row, spans = event.keys.index(key), []
    if event.fields:
        now = {name: column.cell(row) for name, column in event.fields.items() if column is not None}
        spans.append(Span(_put_text(now)))
        spans += _overwrites(now, {name: looks[where, name] for name in now if (where, name) in looks})
        looks.update({(where, name): look for name, look in now.items()})
    if event.tags and row < len(event.tags):
        spans += _tag_spans(tags.get(where, {}), event.tags[row])
        tags[where] = {**tags.get(where, {}), **event.tags[row]}
    return spans


def _put_text(now: dict[str, Look]) -> str:
    size = sum(look.num_bytes for look in now.values())
    held = f", {size_text(size)}" if size else ""
    if len(now) == 1:
        name, look = next(iter(now.items()))
        return f"{name} {describe_cells([look])}{held}"
    return f"{count(len(now), 'field')}{held}: {listed(list(now), NUM_FIELDS)}"


def _overwrites(now: dict[str, Look], before: dict[str, Look]) -> list[Span]:
    """An overwrite with another look is loud; with the same look it is only named."""
    spans = []
    changed = [name for name, look in before.items() if now[name][:3] != look[:3]]
    for name in changed:
        spans.append(Span(f"over {describe_cells([before[name]])} ({name})", State.WARN))
    if same := [name for name in before if name not in changed]:
        spans.append(Span(f"over values of the same look ({listed(same, NUM_FIELDS)})", State.DIM))
    return spans


def _tag_spans(before: dict[str, Any], now: dict[str, Any]) -> list[Span]:
    changed = [name for name in now if name not in before or value_of(before[name]) != value_of(now[name])]
    said = [
        f"{name}={value_of(before[name])}->{value_of(now[name])}" if name in before else f"{name}={value_of(now[name])}"
        for name in changed
    ]
    return [Span(f"tags {', '.join(said)}" if said else "tags unchanged", State.DIM)]
