"""`View`: what every function of the inspector returns, shown the same in a notebook, a terminal, a log and a test.

verl 0.9.1 has no counterpart. A view holds data only: no queue, no file, no widget. It can be displayed twice,
pickled, kept and compared after the queue has moved on. A notebook gets HTML and text in one bundle, so a saved page
needs no kernel and a terminal needs no browser.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kitlib.errors import KitError
from kitlib.inspector.render.html_writer import rows_within, write_html
from kitlib.inspector.render.model import Table, ViewModel, cell
from kitlib.inspector.render.printable import printable
from kitlib.inspector.render.states import State

if TYPE_CHECKING:
    from kitlib.inspector.render.rich_writer import RichView

NOTE_BYTES = 250  # kept free for the note on a table that is cut
PAGE_BUDGET = 60_000  # bytes of HTML: a notebook with fifty views stays below 3 MB
ROW_BYTES = 60  # no row of two cells takes fewer in a page


def max_rows(budget: int) -> int:
    """More rows than this do not fit into a page: a view of a large queue need not make them."""
    return budget // ROW_BYTES


class ViewTooLargeError(KitError):
    """A view that stays above its budget even without table rows."""


class View:
    """A picture of the queue at one moment.

    model: what it says (kitlib.inspector.render.model.ViewModel). A table that would make the page larger than `budget`
    bytes loses its last rows, and a note says how many of how many are shown and why.
    Raises ViewTooLargeError when head lines and notes alone exceed the budget.
    """

    def __init__(self, model: ViewModel, budget: int = PAGE_BUDGET) -> None:
        self.model = _within(model, budget)
        self.budget = budget

    @property
    def headline(self) -> str:
        """The first line: the answer, as plain text for a log or a progress display."""
        return printable("  ".join(span.text for span in self.model.headline.spans))

    def text(self, width: int = 100) -> str:
        """The view as plain text, at most `width` characters a line."""
        from kitlib.inspector.render.rich_writer import write_text

        return write_text(self.model, width)

    def html(self) -> str:
        """The view as one HTML element of at most `budget` bytes: no script, no style sheet, no address."""
        return write_html(self.model)

    def __rich__(self) -> RichView:
        from kitlib.inspector.render.rich_writer import RichView

        return RichView(self.model)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}


def _within(model: ViewModel, budget: int) -> ViewModel:
    """The model, its longest tables cut until the page fits; a table that is short is kept whole."""
    bare = replace(model, tables=tuple(table.first(0) for table in model.tables))
    spare = budget - len(write_html(bare).encode()) - NOTE_BYTES * len(model.tables)
    if spare < 0:
        raise ViewTooLargeError(
            f"a view of {budget - spare} bytes without table rows; the budget is {budget}: pass a larger one"
        )
    kept = {}
    for table in sorted(model.tables, key=lambda table: len(table.rows)):
        kept[id(table)], num_bytes = rows_within(table, spare)
        spare -= num_bytes
    tables = tuple(table.first(kept[id(table)]) for table in model.tables)
    return replace(model, tables=tables).with_notes(
        cell(_cut_note(before, len(after.rows), budget), State.WARN)
        for before, after in zip(model.tables, tables, strict=True)
        if len(after.rows) < before.total
    )


def _cut_note(table: Table, num_shown: int, budget: int) -> str:
    shown = f"showing {num_shown:,} of {table.total:,} {table.row_noun}"
    return f"{shown} because a page is kept below {budget / 1000:g} KB; filter to see the others"
