"""The difference of two snapshots: what did this stage change?

verl 0.9.1 has no counterpart. Left out: a rewrite with equal dtype and shape, and what was only read. Two pictures
cannot show either; an event log can.

    compute_old_log_prob  train: put 2 fields on 128 rows (118 KB)
    change       what           rows  before             now
    + put        old_log_probs   128                     float32 J[11..16]
    ~ rewritten  entropy         128  float32 J[31..47]  float32 J[11..16]
"""

from __future__ import annotations

from kitlib.inspector.changes import Change, What, changes
from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.shapes import size_text
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.transfer_queue import QueueSnapshot

NUM_KEYS = 3
LOOKS: dict[What, tuple[str, State]] = {
    "added": ("+ added", State.GOOD),
    "cleared": ("- cleared", State.WARN),
    "put": ("+ put", State.GOOD),
    "rewritten": ("~ rewritten", State.WARN),
    "gone": ("- gone", State.BAD),
    "tag": ("~ tag", State.WARN),
}


def diff(
    before: QueueSnapshot,
    after: QueueSnapshot,
    *,
    partition_id: str | None = None,
    title: str = "",
    budget: int = PAGE_BUDGET,
) -> View:
    """What is different in `after`: rows added and cleared, fields put, rewritten and gone, tags changed.

    partition_id: only this partition; None compares all, each with its own table.
    title:        words for the first line, such as the name of the stage between the two.
    """
    names = ShortNames.of(before, after)
    wanted = [partition_id] if partition_id else sorted({*before.partitions, *after.partitions})
    found = {name: changes(before.partitions.get(name), after.partitions.get(name)) for name in wanted}
    said = [f"{name}: {_summary(found[name])}" for name in wanted] or ["no partition in either snapshot"]
    seconds = f"{after.taken_at - before.taken_at:.3f} s between the two snapshots"
    trace = "a rewrite with equal dtype and shape leaves no trace in a snapshot"
    model = ViewModel(
        headline=line((title, State.STRONG), *said),
        facts=cell(seconds, State.DIM),
        tables=tuple(_table(name, found[name], names) for name in wanted if found[name]),
        notes=tuple(cell(note, State.DIM) for note in (trace, names.note()) if note),
    )
    return View(model, budget)


def _summary(found: list[Change]) -> str:
    """`added 128 rows; put 2 fields (118 KB); changed 1 tag`, or `nothing changed`."""
    said = []
    for what in ("added", "cleared"):
        said += [f"{what} {_counted_keys(change)}" for change in found if change.what == what]
    for what, verb in (("put", "put"), ("rewritten", "rewrote"), ("gone", "lost")):
        fields = [change for change in found if change.what == what]
        if fields:
            rows = count(len({key for change in fields for key in change.keys}), "row")
            size = f" ({size_text(sum(change.num_bytes for change in fields))})" if what != "gone" else ""
            said.append(f"{verb} {count(len(fields), 'field')} on {rows}{size}")
    tags = [change.subject for change in found if change.what == "tag"]
    said += [f"changed {count(len(tags), 'tag')}: {listed(tags, 3)}"] if tags else []
    return "; ".join(said) or "nothing changed"


def _counted_keys(change: Change) -> str:
    return count(len(change.keys), change.subject.removesuffix("s"))


def _table(partition_id: str, found: list[Change], names: ShortNames) -> Table:
    columns = (
        Column("change"),
        Column("what"),
        Column("rows", align="right"),
        Column("before"),
        Column("now"),
        Column("keys", flow=True),
    )
    return Table(
        columns, tuple(_row(change, names) for change in found), cell(partition_id, State.STRONG), 2, "changes"
    )


def _row(change: Change, names: ShortNames) -> tuple[Cell, ...]:
    word, state = LOOKS[change.what]
    keys = Cell(tuple(names.spans(change.keys, NUM_KEYS)))
    counted = cell(f"{len(change.keys):,}")
    return (cell(word, state), cell(change.subject), counted, cell(change.before), cell(change.now), keys)
