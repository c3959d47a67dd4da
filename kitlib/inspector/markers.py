"""Prompt markers, shown apart from trajectories: they carry the status of a prompt, not training data.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, ReplayBuffer reads is_prompt, status and global_steps of these keys, and
removes a marker when its group is sampled.

    pending ──> running ──> finished    one line a status; the sampler takes finished prompts, oldest first,
                       └──> failure     and waits while there are too few of them
"""

from __future__ import annotations

from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Span, Table, cell
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.selection import Filter, Selection
from kitlib.inspector.tags import describe_tags, status_of
from kitlib.keys import uid_of

STATUS_STATES = {"pending": State.DIM, "running": State.WARN, "finished": State.GOOD, "failure": State.BAD}
NUM_MARKERS = 6


def marker_table(selection: Selection, names: ShortNames, keep: Filter) -> list[Table]:
    """A line for every status: how many prompts, which ones, how many rows their groups have by now. [] without
    markers."""
    by_status: dict[str, list[int]] = {}
    for i in selection.markers:
        if keep.keeps(selection.partition.keys[i], selection.partition.tags[i]):
            by_status.setdefault(status_of(selection.partition.tags[i]), []).append(i)
    if not by_status:
        return []
    num_rows: dict[str, int] = {}
    for key in selection.keys(selection.rows):
        num_rows[uid_of(key)] = num_rows.get(uid_of(key), 0) + 1
    order = [*STATUS_STATES, *sorted(set(by_status) - set(STATUS_STATES))]
    rows = [_line(status, by_status[status], selection, names, num_rows) for status in order if status in by_status]
    columns = (
        Column("prompts", align="right"),
        Column("status"),
        Column("rows so far", align="right"),
        Column("markers", flow=True),
        Column("tags", flow=True),
    )
    return [
        Table(columns, tuple(rows), Cell((Span("prompt markers", State.STRONG),)), num_fixed=2, row_noun="statuses")
    ]


def _line(
    status: str, positions: list[int], selection: Selection, names: ShortNames, num_rows: dict[str, int]
) -> tuple[Cell, ...]:
    keys, tags = selection.keys(positions), selection.tags(positions)
    fields = int((selection.partition.present[positions].sum(axis=1) > 0).sum())
    carrying = f"; {count(fields, 'marker')} with fields" if fields else ""
    without_status = [
        {name: value for name, value in tag.items() if name not in ("status", "is_prompt")} for tag in tags
    ]
    return (
        cell(f"{len(keys):,}"),
        cell(status, STATUS_STATES.get(status, State.BAD)),
        cell(f"{sum(num_rows.get(uid_of(key), 0) for key in keys):,}"),
        Cell(tuple(names.spans(keys, NUM_MARKERS))),
        cell(describe_tags(without_status, with_status=False) + carrying, State.DIM),
    )


def stray_note(selection: Selection, names: ShortNames) -> str:
    """The sentence about keys that are neither marker nor row, "" when there are none."""
    if not selection.strays:
        return ""
    keys = [names.key(key) for key in selection.keys(selection.strays)]
    verb = "is" if len(keys) == 1 else "are"
    why = "neither marker (no is_prompt tag) nor row (no field): cleared or half registered"
    return f"{count(len(keys), 'key')} {verb} {why}: {listed(keys)}"
