"""The partitions side by side: what sits in `train`, what in `val`, and is a key in both?

verl 0.9.1 uses two partitions, train and val (trainer/ppo/v1/trainer_base.py). The same key may live in both, and
clearing one leaves the other (TransferQueue 0.1.11); a key in two partitions is nearly always a mistake, so the first
line says it.
"""

from __future__ import annotations

from collections import Counter

from kitlib.inspector.markers import STATUS_STATES
from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.selection import Selection, select
from kitlib.inspector.shapes import num_bytes, size_text
from kitlib.inspector.source import Source, snapshot_of
from kitlib.inspector.tags import status_of
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.keys import uid_of
from kitlib.transfer_queue import QueueSnapshot


def partitions(source: Source, *, title: str = "", budget: int = PAGE_BUDGET) -> View:
    """One line a partition: prompts by status, groups, rows by status, padding, fields, bytes; and keys in more than
    one.

    source: a QueueSnapshot or a queue. Reads keys, tags and presence; never a tensor.
    """
    snapshot = snapshot_of(source)
    selections = {name: select(snapshot, name) for name in snapshot.partitions}
    twice = _in_two(snapshot)
    names = ShortNames.of(snapshot)
    said = f"{count(len(twice), 'key')} in more than one partition: {listed([names.key(key) for key in twice], 3)}"
    verdict = (said, State.WARN) if twice else ("no key in more than one partition", State.GOOD)
    num_keys = sum(len(part.keys) for part in snapshot.partitions.values())
    model = ViewModel(
        headline=line((count(len(selections), "partition"), State.STRONG), count(num_keys, "key"), verdict),
        facts=line(title),
        tables=(_table(selections),) if selections else (),
        notes=(cell(names.note(), State.DIM),) if twice and names.note() else (),
    )
    return View(model, budget)


def _in_two(snapshot: QueueSnapshot) -> list[str]:
    counts = Counter(key for part in snapshot.partitions.values() for key in part.keys)
    return [key for key, number in counts.items() if number > 1]


def _table(selections: dict[str, Selection]) -> Table:
    columns = (
        Column("partition"),
        Column("keys", align="right"),
        Column("prompt markers"),
        Column("groups", align="right"),
        Column("rows"),
        Column("padding", align="right"),
        Column("strays", align="right", hover="keys that are neither marker nor row"),
        Column("fields", align="right"),
        Column("bytes", align="right"),
    )
    return Table(columns, tuple(_row(name, selection) for name, selection in selections.items()), row_noun="partitions")


def _row(name: str, selection: Selection) -> tuple[Cell, ...]:
    partition = selection.partition
    padding = [i for i in selection.rows if selection.is_padding(i)]
    groups = {uid_of(partition.keys[i]) for i in {*selection.rows} - {*padding}}
    strays = len(selection.strays)
    return (
        cell(name, State.STRONG),
        cell(f"{len(partition.keys):,}"),
        _statuses(selection, selection.markers),
        cell(f"{len(groups):,}"),
        _statuses(selection, selection.rows),
        cell(len(padding) or "-"),
        cell(strays or "-", State.WARN if strays else State.PLAIN),
        cell(len(partition.fields)),
        cell(size_text(num_bytes(partition, range(len(partition.keys))))),
    )


def _statuses(selection: Selection, positions: tuple[int, ...]) -> Cell:
    counts = Counter(status_of(tag) for tag in selection.tags(positions))
    spans = [
        (f"{number:,} {status}", STATUS_STATES.get(status, State.PLAIN)) for status, number in counts.most_common()
    ]
    return line(*spans) if spans else cell("-", State.DIM)
