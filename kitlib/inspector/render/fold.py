"""Fold a table of marks that is too wide for a terminal: neighbours that say the same share one column.

Only quiet columns fold (present everywhere and not asked for, or not due, or absent and not needed); what the reader
must see keeps its own column. The names that went into `+9` are listed below the table, so nothing is left out.
"""

from __future__ import annotations

from dataclasses import replace

from kitlib.inspector.render.model import Cell, Column, Table, line
from kitlib.inspector.render.states import State

QUIET = frozenset({State.PRESENT, State.NOT_DUE, State.ABSENT})


def fold(table: Table) -> tuple[Table, list[Cell]]:
    """The narrower table and one line a folded column with the names that it stands for."""
    runs = [[0]] if table.columns else []
    for j in range(1, len(table.columns)):
        runs[-1].append(j) if _alike(table, runs[-1][0], j) else runs.append([j])
    runs = _gathered(table, runs)
    columns = tuple(_column(table.columns, members) for members in runs)
    rows = tuple(tuple(row[members[0]] for members in runs) for row in table.rows)
    return replace(table, columns=columns, rows=rows), [
        _names(table.columns, members) for members in runs if len(members) > 1
    ]


def _states(table: Table, j: int) -> list[State]:
    return [span.state for row in table.rows for span in row[j].spans]


def _foldable(table: Table, j: int) -> bool:
    column = table.columns[j]
    return column.mark and column.state is not State.STRONG and QUIET.issuperset(_states(table, j))


def _alike(table: Table, i: int, j: int) -> bool:
    same_group = table.columns[i].group == table.columns[j].group
    return same_group and _foldable(table, i) and _foldable(table, j) and _states(table, i) == _states(table, j)


def _gathered(table: Table, runs: list[list[int]]) -> list[list[int]]:
    """Runs of one group that say the same become one, at the place of the last, so that a group ends with its `+n`."""
    gathered: list[list[int]] = []
    for run in runs:
        earlier = next((other for other in gathered if _alike(table, other[0], run[0])), None)
        if earlier is not None:
            gathered.remove(earlier)
        gathered.append([*(earlier or []), *run])
    return gathered


def _column(columns: tuple[Column, ...], members: list[int]) -> Column:
    first = columns[members[0]]
    return first if len(members) == 1 else Column(f"+{len(members)}", first.group, "center", mark=True)


def _names(columns: tuple[Column, ...], members: list[int]) -> Cell:
    names = ", ".join(columns[j].name for j in members)
    return line((f"+{len(members)} {columns[members[0]].group}:", State.DIM), (names, State.DIM))
