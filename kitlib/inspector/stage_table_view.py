"""The stage table: fields down, stages across. Which field appears after which stage, and who reads it next?

verl 0.9.1 has no counterpart. Each column is one snapshot, taken when a stage had ended, judged like a presence view by
what the stage in the next column reads.

                     submit  sample  balance  old log-prob  advantage
    prompt markers       16       -        -             -          -
    rows                  -     128      128           128        128
    rm_scores             ·       ▪        ▪             ■          ▪
    advantages            ·       ·        ·             ·          ■
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from kitlib.contract import STAGES
from kitlib.inspector.judgement import group_of, judge
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line, mark, marks_used
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.inspector.selection import Selection, select
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.transfer_queue import QueueSnapshot

NUM_NAMED = 2  # fields with the same history are named up to this many, and counted above

History = Sequence[tuple[str, QueueSnapshot]]


def stage_table(
    history: History, config: Any = None, partition_id: str = "train", *, title: str = "", budget: int = PAGE_BUDGET
) -> View:
    """One line a field (fields of a group with the same history share one), one column a stage.

    history: (stage that has ended, snapshot taken then), in the order of time. Reads keys, tags and presence only.
    Raises UnknownStageError.
    """
    known = [
        (name, select(snapshot, partition_id)) for name, snapshot in history if partition_id in snapshot.partitions
    ]
    upcoming = [name for name, _ in known[1:]]
    columns = [_Column(name, now, later, config) for (name, now), later in zip_longest(known, upcoming)]
    lines = _merge(judge(None).columns({field for one in columns for field in one.fields}), columns)
    table = Table(
        (Column("after"), *(Column(one.title, align="right") for one in columns)),
        (
            _counts("prompt markers", [len(one.selection.markers) for one in columns]),
            _counts("rows", [len(one.selection.rows) for one in columns]),
            *(row for _, row in lines),
        ),
        row_noun="fields",
    )
    model = ViewModel(
        headline=line((partition_id, State.STRONG), "fields on the rows after each stage"),
        facts=line(title),
        tables=(table,),
        legend=marks_used((table,)),
        notes=tuple(
            cell(f"{_label(names)}: {', '.join(names)}", State.DIM) for names, _ in lines if len(names) > NUM_NAMED
        ),
    )
    return View(model, budget)


class _Column:
    """What one snapshot says about each field."""

    def __init__(self, stage: str, selection: Selection, upcoming: str | None, config: Any) -> None:
        self.title = STAGES[stage].title
        self.selection = selection
        self.judgement = judge(upcoming, config)
        self.fields = [field for field in selection.partition.fields if selection.rows]

    def cell(self, field: str) -> Cell:
        num_rows = len(self.selection.rows)
        num_present = int(self.selection.presence([field]).sum()) if num_rows else 0
        if not num_rows:
            return mark(State.NOT_DUE)
        if num_present == num_rows:
            return mark(self.judgement.present(field))
        absent = self.judgement.absent(field, False)
        return mark(absent) if not num_present else cell(f"{num_present}/{num_rows}", State.BAD)


def _merge(fields: list[str], columns: list[_Column]) -> list[tuple[list[str], tuple[Cell, ...]]]:
    """(names, line) of fields; those of one group with equal cells stand on one line."""
    merged: dict[tuple[str, tuple[Cell, ...]], list[str]] = {}
    for field in fields:
        merged.setdefault((group_of(field), tuple(one.cell(field) for one in columns)), []).append(field)
    return [(names, (cell(_label(names)), *cells)) for (_, cells), names in merged.items()]


def _label(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= NUM_NAMED else f"{count(len(names), 'field')} of {group_of(names[0])}"


def _counts(name: str, numbers: list[int]) -> tuple[Cell, ...]:
    return (cell(name, State.STRONG), *(cell(number or "-") for number in numbers))
