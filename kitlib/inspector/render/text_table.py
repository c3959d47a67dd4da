"""Lay a table out in lines of text.

`rich` measures, wraps and colours; the layout is ours, because a rich table has no header that spans several columns
and shrinks columns until two names look equal. A table too wide for the terminal is folded (see `fold`), then broken
into bands that repeat its first columns: nothing is cut.

    rows │ agent loop                     │ old log-prob
         │ prompts  responses  rm_scores  │ old_log_probs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from kitlib.inspector.render.fold import fold
from kitlib.inspector.render.model import Cell, Column, Span, Table
from kitlib.inspector.render.printable import printable

MIN_FLOW = 24  # a column of sentences is never squeezed below this many characters
GAP, GROUP_GAP = "  ", " │ "

Slot = tuple[int, str, str]  # width, align, group of one piece of a line


def table_lines(table: Table, console: Console, width: int) -> Iterator[Text]:
    """The table in lines of at most `width` characters, as far as single cells allow; folded names come last."""
    names: list[Cell] = []
    widths = _natural_widths(table)
    if _Band(table, widths, list(range(len(table.columns)))).min_width > width:
        table, names = fold(table)
        widths = _natural_widths(table)
    for number, band in enumerate(_bands(table, widths, width)):
        if number:
            yield Text()
        yield from band.lines(console, width)
    for cell in names:
        yield from hanging(cell_text(cell), console, width)


def cell_text(cell: Cell, separator: str | None = None) -> Text:
    """A cell as one coloured line."""
    line = Text(cell.glue if separator is None else separator).join(_span(span) for span in cell.spans)
    line.end = "\n"
    return line


def hanging(text: Text, console: Console, width: int) -> Iterator[Text]:
    """A sentence whose second line is indented, so that several notes stay apart."""
    first, *_ = text.wrap(console, max(width, 10))
    yield first
    start = len(text.plain) - len(text.plain[len(first.plain) :].lstrip())
    if rest := text[start:]:
        for line in rest.wrap(console, max(width - 2, 10)):
            yield Text("  ") + line


def _span(span: Span) -> Text:
    return Text(printable(span.text), style=span.state.look.style, end="")


def _natural_widths(table: Table) -> list[int]:
    """Per column, the width of its longest cell or its name."""
    lengths = [[cell_len(printable(str(row[j]))) for row in table.rows] for j in range(len(table.columns))]
    return [max([cell_len(printable(column.name)), *own]) for column, own in zip(table.columns, lengths, strict=True)]


class _Band:
    """Columns of a table that stand beside each other.

    widths: natural widths of all columns of the table; chosen: positions of the columns of this band.
    """

    def __init__(self, table: Table, widths: Sequence[int], chosen: list[int]) -> None:
        self.table, self.natural, self.chosen = table, widths, chosen
        self.columns = [table.columns[j] for j in chosen]
        self.groups = [
            (printable(label), [position for position, _ in members])
            for label, members in groupby(enumerate(self.columns), key=lambda pair: pair[1].group)
        ]
        self.widths = [min(widths[j], MIN_FLOW) if table.columns[j].flow else widths[j] for j in chosen]
        for label, members in self.groups:
            self.widths[members[-1]] += max(0, cell_len(label) - self._width(members))

    @property
    def min_width(self) -> int:
        """Width of the band before its columns of sentences grow."""
        return self._width(range(len(self.columns)))

    def _width(self, members: Sequence[int]) -> int:
        gaps = (self.columns[a].group == self.columns[b].group for a, b in pairwise(members))
        return sum(self.widths[m] for m in members) + sum(len(GAP if same else GROUP_GAP) for same in gaps)

    def lines(self, console: Console, width: int) -> Iterator[Text]:
        """Group labels, names and rows; what is left of `width` goes to the columns of sentences."""
        self._grow(width - self.min_width)
        slots = [
            (size, "left" if column.mark else column.align, column.group)
            for size, column in zip(self.widths, self.columns, strict=True)
        ]
        if any(label for label, _ in self.groups):
            labels = [Text(label) for label, _ in self.groups]
            yield _line(labels, [(self._width(members), "left", label) for label, members in self.groups])
        if any(column.name for column in self.columns):
            yield _line([_name(column) for column in self.columns], slots)
        for row in self.table.rows:
            yield from self._row([row[j] for j in self.chosen], console)

    def _grow(self, spare: int) -> None:
        for position, (j, column) in enumerate(zip(self.chosen, self.columns, strict=True)):
            if column.flow and spare > 0:
                grown = min(self.natural[j] - self.widths[position], spare)
                self.widths[position] += max(grown, 0)
                spare -= max(grown, 0)

    def _row(self, cells: list[Cell], console: Console) -> Iterator[Text]:
        """A row, as many lines high as its highest cell."""
        texts = [
            list(text.wrap(console, size)) if column.flow and cell_len(text.plain) > size else [text]
            for text, column, size in zip(map(cell_text, cells), self.columns, self.widths, strict=True)
        ]
        slots = [(size, column.align, column.group) for size, column in zip(self.widths, self.columns, strict=True)]
        for height in range(max(map(len, texts))):
            yield _line([own[height] if height < len(own) else Text() for own in texts], slots)


def _bands(table: Table, widths: Sequence[int], width: int) -> list[_Band]:
    """As many columns in a band as fit, the first `num_fixed` in every band."""
    fixed = list(range(table.num_fixed))
    bands, current = [], _Band(table, widths, fixed)
    for j in range(table.num_fixed, len(table.columns)):
        wider = _Band(table, widths, [*current.chosen, j])
        if len(current.chosen) > len(fixed) and wider.min_width > width:
            bands.append(current)
            wider = _Band(table, widths, [*fixed, j])
        current = wider
    return [*bands, current]


def _name(column: Column) -> Text:
    return Text(printable(column.name), style=column.state.look.style or "italic")


def _line(texts: Sequence[Text], slots: Sequence[Slot]) -> Text:
    """One line: each text padded to its slot, a bar where the group changes."""
    line = Text(no_wrap=True)
    for position, (text, (width, align, group)) in enumerate(zip(texts, slots, strict=True)):
        if position:
            line.append(GAP if slots[position - 1][2] == group else GROUP_GAP)
        missing = max(0, width - cell_len(text.plain))
        left = {"left": 0, "right": missing, "center": missing // 2}[align]
        line.append(" " * left).append_text(text).append(" " * (missing - left))
    return line
