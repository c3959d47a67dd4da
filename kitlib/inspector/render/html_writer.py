"""Write a view model as a piece of a page: one element, no script, no style sheet, no address.

verl 0.9.1 has no counterpart. Styles stand inline because a saved notebook keeps nothing else, text takes the
reader's own colour and states are half-transparent, so the same page is readable in a light and a dark theme.
Everything shown passes `printable` and `html.escape`; attributes hold our constants and escaped hover texts only.
"""

from __future__ import annotations

import re
from html import escape
from itertools import groupby

from kitlib.inspector.render.model import Cell, Column, Span, Table, ViewModel
from kitlib.inspector.render.printable import printable
from kitlib.inspector.render.states import INKS, State

_FONT = "12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_PAGE = f"font:{_FONT};overflow-x:auto;padding:4px 0;{INKS}"
_LINE = "margin:2px 0;white-space:pre-wrap;overflow-wrap:anywhere"
_TABLE = "border-collapse:collapse;margin:4px 0;font:inherit;color:inherit;border:0"
_RULE = "1px solid rgba(128,128,128,.55)"
_BARE_ROW = "background:none"
_GROUP = "vertical-align:bottom;font-weight:normal;font-style:italic;opacity:.8"
_UPRIGHT = "writing-mode:vertical-rl;line-height:1.2;transform:rotate(180deg);white-space:nowrap;margin:0 auto"
_WIDE_GAP = "&nbsp; "  # notebook exporters shrink plain blanks between two elements to one
_LONG_WORD = re.compile(r"\S{20,}")
LETTERS_A_MARK = 2  # of a group's label over each of its columns, if they stand upright
NUM_MARKS_UPRIGHT = 9  # with more columns of marks than this, their names stand upright to save width


def write_html(model: ViewModel) -> str:
    """The model as one `<div>`."""
    parts = [f'<div style="{_LINE};font-size:13px">{_spans(model.headline, _WIDE_GAP)}</div>']
    if model.facts.spans:
        parts.append(f'<div style="{_LINE}">{_spans(model.facts, _WIDE_GAP)}</div>')
    parts += [_table(table) for table in model.tables]
    if model.legend:
        parts.append(
            f'<div style="{_LINE};margin-top:6px">{"   ".join(_legend_entry(state) for state in model.legend)}</div>'
        )
    parts += [f'<div style="{_LINE}">{_spans(note)}</div>' for note in model.notes]
    return f'<div class="kitlib-view" style="{_PAGE}">{"".join(parts)}</div>'


def _span(span: Span, breaks: bool = False) -> str:
    text = escape(printable(span.text))
    if breaks:
        text = _LONG_WORD.sub(lambda word: word[0].replace(".", ".<wbr>"), text)
    hover = f' title="{escape(printable(span.hover))}"' if span.hover else ""
    style = f' style="{span.state.look.css}"' if span.state.look.css else ""
    if span.anchor:
        text = f'<a href="#{escape(span.anchor)}" style="color:inherit">{text}</a>'
    return f"<span{hover}{style}>{text}</span>" if hover or style else text


def _spans(cell: Cell, separator: str | None = None, breaks: bool = False) -> str:
    """breaks: a long dotted name may go on in the next line after a dot. What a reader copies is still the name."""
    return (cell.glue if separator is None else separator).join(_span(span, breaks) for span in cell.spans)


def _legend_entry(state: State) -> str:
    return (
        f'<span style="{state.look.css};padding:0 4px">{escape(state.look.glyph)}</span> {escape(state.look.meaning)}'
    )


# ------------------------------------------------------------------------------------------------------------- tables


def _table(table: Table) -> str:
    upright = sum(column.mark for column in table.columns) > NUM_MARKS_UPRIGHT
    starts = _starts(table)
    caption = f'<div style="{_LINE};margin-top:6px">{_spans(table.caption)}</div>' if table.caption.spans else ""
    head = _group_row(table, starts, upright) + _header_row(table, starts, upright)
    body = "".join(_row(row, table, starts) for row in table.rows)
    return f'{caption}<table style="{_TABLE}"><thead style="border:0">{head}</thead><tbody>{body}</tbody></table>'


def rows_within(table: Table, budget: int) -> tuple[int, int]:
    """How many rows of the table fit into `budget` bytes, and how many bytes they take."""
    starts, total = _starts(table), 0
    for num_rows, row in enumerate(table.rows):
        num_bytes = len(_row(row, table, starts).encode())
        if total + num_bytes > budget:
            return num_rows, total
        total += num_bytes
    return len(table.rows), total


def _starts(table: Table) -> list[bool]:
    """Where a group of columns starts, and with it a rule."""
    return [j > 0 and column.group != table.columns[j - 1].group for j, column in enumerate(table.columns)]


def _group_row(table: Table, starts: list[bool], upright: bool) -> str:
    """The label of a group stands upright like the names below it where it is wider than its columns."""
    if not any(column.group for column in table.columns):
        return ""
    cells, position = [], 0
    for label, members in groupby(table.columns, key=lambda column: column.group):
        columns = list(members)
        name, align = escape(printable(label)), "left"
        if upright and all(column.mark for column in columns) and len(label) > LETTERS_A_MARK * len(columns):
            name, align = f'<div style="{_UPRIGHT}">{name}</div>', "center"
        cells.append(f'<th colspan="{len(columns)}" style="{_box(align, starts[position])};{_GROUP}">{name}</th>')
        position += len(columns)
    return f'<tr style="{_BARE_ROW}">{"".join(cells)}</tr>'


def _header_row(table: Table, starts: list[bool], upright: bool) -> str:
    if not any(column.name for column in table.columns):
        return ""
    cells = [_header(column, start, upright) for column, start in zip(table.columns, starts, strict=True)]
    return f'<tr style="{_BARE_ROW};border-bottom:{_RULE}">{"".join(cells)}</tr>'


def _header(column: Column, start: bool, upright: bool) -> str:
    name = escape(printable(column.name))
    if upright and column.mark:
        name = f'<div style="{_UPRIGHT}">{name}</div>'
    weight = "700" if column.state is State.STRONG else "400"
    hover = f' title="{escape(printable(column.hover))}"' if column.hover else ""
    align = "center" if column.mark else column.align
    return f'<th{hover} style="{_box(align, start)};vertical-align:bottom;font-weight:{weight}">{name}</th>'


def _row(row: tuple[Cell, ...], table: Table, starts: list[bool]) -> str:
    cells = [_cell(one, column, start) for one, column, start in zip(row, table.columns, starts, strict=True)]
    return f'<tr style="{_BARE_ROW}">{"".join(cells)}</tr>'


def _cell(cell: Cell, column: Column, start: bool) -> str:
    style = _box(column.align, start, column.flow)
    if column.mark and len(cell.spans) == 1 and not cell.spans[0].hover:  # the whole cell takes the state's colour
        span = cell.spans[0]
        return f'<td style="{style};{span.state.look.css}">{escape(printable(span.text))}</td>'
    return f'<td style="{style}">{_spans(cell, breaks=column.flow)}</td>'


def _box(align: str, start: bool, flow: bool = False) -> str:
    """Spacing that notebook style sheets would otherwise widen; a rule where a group of columns starts."""
    rule = f";border-left:{_RULE}" if start else ""
    space = "0 2px"
    if align != "center":
        space = f"0 8px;line-height:1.5;vertical-align:top;white-space:{'pre-wrap;min-width:20ch' if flow else 'pre'}"
    return f"padding:{space};text-align:{align}{rule}"
