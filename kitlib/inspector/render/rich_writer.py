"""Write a view model for a terminal: colour where there is colour, plain text where there is none.

verl 0.9.1 has no counterpart. `rich` measures, wraps and colours; only the table is laid out here, because a rich
table has no header that spans several columns and shrinks columns until two names look equal. A table too wide for
the terminal is folded, then broken into bands that repeat its first columns: nothing is cut.

    rows │ agent loop                     │ old log-prob
         │ prompts  responses  rm_scores  │ old_log_probs
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from kitlib.inspector.render.fold import fold
from kitlib.inspector.render.model import Cell, Column, Span, Table, ViewModel
from kitlib.inspector.render.printable import printable
from kitlib.inspector.render.states import State

MIN_FLOW = 24  # a column of sentences is never squeezed below this many characters
GAP, GROUP_GAP = "  ", " │ "


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
    yield _text(model.headline, "  ")
    if model.facts.spans:
        yield _text(model.facts, "  ")
    for table in model.tables:
        if table.caption.spans:
            yield _text(table.caption)
        yield from _table_lines(table, console, width)
    yield from _legend(model.legend, width)
    for note in model.notes:
        yield from _hanging(_text(note), console, width)


def _span(span: Span) -> Text:
    return Text(printable(span.text), style=span.state.look.style, no_wrap=False, end="")


def _text(cell: Cell, separator: str = " ") -> Text:
    line = Text(separator).join(_span(span) for span in cell.spans)
    line.end = "\n"
    return line


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


def _hanging(text: Text, console: Console, width: int) -> Iterator[Text]:
    """A sentence whose second line is indented, so that several notes stay apart."""
    first, *_ = text.wrap(console, max(width, 10))
    yield first
    start = len(text.plain) - len(text.plain[len(first.plain) :].lstrip())
    if rest := text[start:]:
        for line in rest.wrap(console, max(width - 2, 10)):
            yield Text("  ") + line


# ------------------------------------------------------------------------------------------------------------- tables


def _table_lines(table: Table, console: Console, width: int) -> Iterator[Text]:
    widths, everything = _natural_widths(table), list(range(len(table.columns)))
    names: list[Cell] = []
    if _span_width(table.columns, _fit(table.columns, widths, everything, 0), everything) > width:
        table, names = fold(table)
        widths = _natural_widths(table)
    for number, columns in enumerate(_bands(table, widths, width)):
        if number:
            yield Text()
        fitted = _fit(table.columns, widths, columns, width)
        if any(table.columns[j].group for j in columns):
            yield _row(
                [Text(label) for label, _ in _labels(table.columns, columns)], _label_layout(table, fitted, columns)
            )
        layout = [
            (fitted[j], "left" if table.columns[j].mark else table.columns[j].align, table.columns[j].group)
            for j in columns
        ]
        yield _row([_header(table.columns[j]) for j in columns], layout)
        for row in table.rows:
            yield from _tall_row(
                [_wrapped(row[j], table.columns[j], fitted[j], console) for j in columns], table, columns, fitted
            )
    for cell in names:
        yield from _hanging(_text(cell), console, width)


def _header(column: Column) -> Text:
    return Text(printable(column.name), style=column.state.look.style or "italic")


def _natural_widths(table: Table) -> list[int]:
    cells = [[cell_len(printable(str(row[j]))) for row in table.rows] for j in range(len(table.columns))]
    return [
        max([cell_len(printable(column.name)), *lengths]) for column, lengths in zip(table.columns, cells, strict=True)
    ]


def _gap(columns: tuple[Column, ...], left: int, right: int) -> str:
    return GAP if columns[left].group == columns[right].group else GROUP_GAP


def _labels(columns: tuple[Column, ...], chosen: list[int]) -> list[tuple[str, list[int]]]:
    """(label, members) of each run of neighbouring columns of one group."""
    return [(printable(label), list(members)) for label, members in groupby(chosen, key=lambda j: columns[j].group)]


def _span_width(columns: tuple[Column, ...], widths: list[int], members: list[int]) -> int:
    return sum(widths[j] for j in members) + sum(
        len(_gap(columns, a, b)) for a, b in zip(members, members[1:], strict=False)
    )


def _fit(columns: tuple[Column, ...], widths: list[int], chosen: list[int], width: int) -> list[int]:
    """Final widths of one band: room for the group labels, and what is left over goes to the columns of sentences."""
    fitted = [min(w, MIN_FLOW) if columns[j].flow else w for j, w in enumerate(widths)]
    for label, members in _labels(columns, chosen):
        fitted[members[-1]] += max(0, cell_len(label) - _span_width(columns, fitted, members))
    spare = width - _span_width(columns, fitted, chosen)
    for j in chosen:
        if columns[j].flow and spare > 0:
            grown = min(widths[j] - fitted[j], spare)
            fitted[j], spare = fitted[j] + grown, spare - grown
    return fitted


def _bands(table: Table, widths: list[int], width: int) -> list[list[int]]:
    """Which columns stand beside each other: as many as fit, the first `num_fixed` in every band."""
    fixed = list(range(table.num_fixed))
    bands, current = [], list(fixed)
    for j in range(table.num_fixed, len(table.columns)):
        wider = [*current, j]
        fitted = _fit(table.columns, widths, wider, 0)
        if len(current) > len(fixed) and _span_width(table.columns, fitted, wider) > width:
            bands.append(current)
            wider = [*fixed, j]
        current = wider
    return [*bands, current]


def _label_layout(table: Table, fitted: list[int], chosen: list[int]) -> Sequence[tuple[int, str, str]]:
    return [
        (_span_width(table.columns, fitted, members), "left", label)
        for label, members in _labels(table.columns, chosen)
    ]


def _row(texts: list[Text], layout: Sequence[tuple[int, str, str]]) -> Text:
    """One line: each text padded to its width, a bar where the group changes."""
    line = Text(no_wrap=True)
    for position, (text, (width, align, group)) in enumerate(zip(texts, layout, strict=True)):
        if position:
            line.append(GAP if layout[position - 1][2] == group else GROUP_GAP, style="")
        missing = width - cell_len(text.plain)
        left = {"left": 0, "right": missing, "center": missing // 2}[align]
        line.append(" " * left).append_text(text).append(" " * (missing - left))
    return line


def _wrapped(cell: Cell, column: Column, width: int, console: Console) -> list[Text]:
    text = _text(cell)
    return list(text.wrap(console, width)) if column.flow and cell_len(text.plain) > width else [text]


def _tall_row(cells: list[list[Text]], table: Table, chosen: list[int], fitted: list[int]) -> Iterator[Text]:
    """A row whose cells may have several lines."""
    layout = [(fitted[j], table.columns[j].align, table.columns[j].group) for j in chosen]
    for height in range(max(len(texts) for texts in cells)):
        yield _row([texts[height] if height < len(texts) else Text() for texts in cells], layout)
