"""Write a view model for a terminal: colour where there is colour, plain text where there is none.

verl 0.9.1 has no counterpart. The lines are rich texts, which a console colours as far as it can; `text_table` lays the
tables out.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from kitlib.inspector.render.model import ViewModel
from kitlib.inspector.render.states import State
from kitlib.inspector.render.text_table import cell_text, hanging, table_lines


@dataclass(frozen=True)
class RichView:
    """The model as something that rich can print, at the width of whatever console prints it."""

    model: ViewModel

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from lines(self.model, console, options.max_width)


def write_text(model: ViewModel, width: int) -> str:
    """The model as plain lines of at most `width` characters (a single longer word is broken, never dropped)."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False, force_jupyter=False)
    for text in lines(model, console, width):
        console.print(text, overflow="fold")
    return "\n".join(printed.rstrip() for printed in out.getvalue().splitlines())


def lines(model: ViewModel, console: Console, width: int) -> Iterator[Text]:
    """The same, as coloured rich lines."""
    yield cell_text(model.headline, "  ")
    if model.facts.spans:
        yield cell_text(model.facts, "  ")
    for table in model.tables:
        if table.caption.spans:
            yield cell_text(table.caption)
        yield from table_lines(table, console, width)
    yield from _legend(model.legend, width)
    for note in model.notes:
        yield from hanging(cell_text(note), console, width)


def _legend(states: tuple[State, ...], width: int) -> Iterator[Text]:
    """As many entries a line as fit: an entry is never broken."""
    line = Text()
    for state in states:
        entry = Text.assemble((state.look.glyph, state.look.style), f" {state.look.meaning}")
        if line.plain and cell_len(line.plain) + 3 + cell_len(entry.plain) > width:
            yield line
            line = Text()
        line = Text("   ").join([line, entry]) if line.plain else entry
    if line.plain:
        yield line
