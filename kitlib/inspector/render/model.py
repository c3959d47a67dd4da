"""The view model: what a view says, before anyone decides how it looks.

verl 0.9.1 has no counterpart. A view builds one `ViewModel`; the text writer and the page writer both print it and
add no fact of their own, so a terminal, a saved notebook and a test read the same thing.

    ViewModel
      headline   Cell            answers the question of the view
      facts      Cell            counts beside it
      tables     Table, ..       columns (with a group header) x rows of cells
      legend     State, ..       the glyphs that were used
      notes      Cell, ..        sentences below

Every string here is raw: the writers make it printable and escape it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from kitlib.inspector.render.states import State

Align = Literal["left", "center", "right"]


@dataclass(frozen=True)
class Span:
    """A run of text in one state. `hover` is the long form of a shortened text (a whole key): never a fact of its
    own. `anchor`: a place on the same page that the text leads to."""

    text: str
    state: State = State.PLAIN
    hover: str = ""
    anchor: str = ""


@dataclass(frozen=True)
class Cell:
    """Spans with one blank (or `glue`) between them; the content of a table cell or of a line."""

    spans: tuple[Span, ...] = ()
    glue: str = " "

    def __str__(self) -> str:
        return self.glue.join(span.text for span in self.spans)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    group: label printed once above neighbouring columns of the same group.
    flow:  the cells are lists or sentences and may be broken into several lines; other columns never break.
    mark:  the cells are single glyphs, so a page may turn the column's name upright to save width.
    state: how the column's own name looks (STRONG for a field that the next stage reads).
    """

    name: str
    group: str = ""
    align: Align = "left"
    flow: bool = False
    mark: bool = False
    state: State = State.PLAIN
    hover: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under columns. The first `num_fixed` columns name the row: a narrow text repeats them when it breaks the
    table in parts. `num_rows`: how many there are, if `rows` holds only the first of them."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: Cell = field(default_factory=Cell)
    num_fixed: int = 1
    row_noun: str = "rows"
    num_rows: int | None = None

    @property
    def total(self) -> int:
        """How many rows there are, shown or not."""
        return len(self.rows) if self.num_rows is None else self.num_rows

    def first(self, num_rows: int) -> Table:
        """The same table with only its first rows."""
        return replace(self, rows=self.rows[:num_rows])


@dataclass(frozen=True)
class ViewModel:
    """Everything that one view says, in the order in which it is read."""

    headline: Cell
    facts: Cell = field(default_factory=Cell)
    tables: tuple[Table, ...] = ()
    legend: tuple[State, ...] = ()
    notes: tuple[Cell, ...] = ()

    def with_notes(self, notes: Iterable[Cell]) -> ViewModel:
        """The same model with more sentences at the end."""
        return replace(self, notes=(*self.notes, *notes))


def cell(text: object, state: State = State.PLAIN, hover: str = "") -> Cell:
    """A cell of one span."""
    return Cell((Span(str(text), state, hover),))


def line(*parts: str | Span | tuple[str, State]) -> Cell:
    """A cell of several spans, each given as text, as (text, state) or as a span; empty texts drop out."""
    spans = [part if isinstance(part, Span) else Span(part) if isinstance(part, str) else Span(*part) for part in parts]
    return Cell(tuple(span for span in spans if span.text))


@cache
def mark(state: State) -> Cell:
    """The cell that holds the glyph of a state; the same object every time, since a large table has many."""
    return Cell((Span(state.look.glyph, state),))


def marks_used(tables: Iterable[Table]) -> tuple[State, ...]:
    """The glyph states that appear in the tables, in the order of their declaration: the legend."""
    seen = {span.state for table in tables for row in table.rows for one in row for span in one.spans}
    return tuple(state for state in State if state in seen and state.look.meaning)
