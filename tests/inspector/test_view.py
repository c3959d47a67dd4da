"""The frame that all views share: one model, two writers, a size budget, nothing unsafe in the output."""

from __future__ import annotations

import io
import pickle
import re

import pytest
from rich.console import Console

from kitlib.inspector.render.model import Cell, Column, Span, Table, ViewModel, cell, line, mark
from kitlib.inspector.render.states import State
from kitlib.inspector.view import View, ViewTooLargeError
from tests.inspector.reading import assert_same_facts, parse

NASTY = "<script>alert(1)</script>]]><b onmouseover='x'>\"&\x1b[31mred\x07\n\r\t\x9b\u202eabc\u2028\x00\ud800\\"


def table(num_rows: int = 2, names: tuple[str, ...] = ("rm_scores", "values"), text: str = "") -> Table:
    columns = (Column("rows", align="right"), *(Column(name, "agent loop", "center", mark=True) for name in names))
    rows = tuple((cell(i), *(mark(State.PRESENT) for _ in names), cell(text or f"key_{i}_0")) for i in range(num_rows))
    return Table((*columns, Column("keys", flow=True)), rows)


def model(*tables: Table, head: str = "train READY") -> ViewModel:
    return ViewModel(line(head, ("fine", State.GOOD)), cell("2 rows"), tables, (State.PRESENT,), (cell("a note"),))


def test_text_and_page_say_the_same() -> None:
    assert_same_facts(View(model(table(), table(3))))


@pytest.mark.parametrize("where", ["headline", "cell", "column", "group", "hover", "note", "caption"])
def test_nothing_unsafe_reaches_the_output(where: str) -> None:
    made = {
        "headline": ViewModel(cell(NASTY)),
        "cell": model(table(text=NASTY)),
        "column": model(Table((Column(NASTY),), ((cell("x"),),))),
        "group": model(Table((Column("a", group=NASTY),), ((cell("x"),),))),
        "hover": model(Table((Column("a", hover=NASTY),), ((Cell((Span("x", State.PLAIN, NASTY),)),),))),
        "note": ViewModel(cell("x"), notes=(cell(NASTY),)),
        "caption": model(Table((Column("a"),), ((cell("x"),),), caption=cell(NASTY))),
    }[where]
    view = View(made)
    assert {tag for tag, _ in parse(view).elements} <= {"div", "span", "table", "thead", "tbody", "tr", "th", "td"}
    assert {name for _, attrs in parse(view).elements for name in attrs} <= {"style", "title", "class", "colspan"}
    for out in (view.html(), view.text(200)):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800]", out), (
            "an invisible character got through"
        )
        out.encode()
    assert "<script" not in view.html() and "]]>" not in view.html()
    if where != "hover":
        assert r"\x1b[31mred\x07\n\r\t\x9b\u202eabc\u2028\x00\ud800" in view.text(400)
        assert_same_facts(view)


def test_a_long_dotted_name_may_go_on_in_the_next_line_where_text_flows() -> None:
    """Without it the settings of a stage stick out of the page. A number, a short name and other columns stay whole."""
    name = "actor_rollout_ref.rollout.temperature"
    columns = (Column("settings", flow=True), Column("key"))
    page = View(model(Table(columns, ((cell(f"{name}, critic.enable, 0.5"), cell(name)),)))).html()
    assert page.count("<wbr>") == 2
    assert f">{name.replace('.', '.<wbr>')}, critic.enable, 0.5<" in page
    assert f">{name}<" in page


def test_a_group_narrower_than_its_label_has_it_upright() -> None:
    """Else the label makes the columns wide, and the page scrolls sideways."""
    many = tuple(Column(f"field_{i}", "dataset", "center", mark=True) for i in range(10))
    columns = (*many, Column("rm_scores", "old log-prob", "center", mark=True))
    view = View(model(Table(columns, (tuple(mark(State.PRESENT) for _ in columns),))))
    group_row = view.html().split("</tr>")[0]
    upright = re.findall(r"<div style=\"writing-mode[^>]*>([^<]*)</div>", group_row)
    assert upright == ["old log-prob"] and ">dataset<" in group_row
    assert_same_facts(view)


def test_coloured_glyphs_are_mixed_with_the_colour_of_the_text() -> None:
    """A fixed colour is too faint on one of two papers."""
    page = View(model(table())).html()
    root = page.split(">")[0]
    for name in re.findall(r"var\((--\w+)\)", page):
        assert f"{name}:color-mix(in srgb,currentColor " in root
    assert "var(--kb)" in page and not re.search(r"color:#", page)


def test_page_has_no_address_and_needs_no_style_sheet() -> None:
    page = View(model(table(30))).html()
    assert (
        "http" not in page
        and "url(" not in page
        and "@import" not in page
        and "src=" not in page
        and "href" not in page
    )


def test_budget_keeps_whole_rows_and_says_how_many() -> None:
    view = View(model(table(5000), table(3)))
    assert len(view.html().encode()) <= 60_000
    shown = len(view.model.tables[0].rows)
    assert 100 < shown < 5000 and len(view.model.tables[1].rows) == 3
    said = f"showing {shown:,} of 5,000 rows because a page is kept below 60 KB"
    assert said in view.text(200) and said in view.html()
    assert_same_facts(view)


def test_budget_is_used_up() -> None:
    num_bytes = len(View(model(table(5000)), budget=30_000).html().encode())
    assert 29_000 < num_bytes <= 30_000


def test_view_that_cannot_fit_is_an_error() -> None:
    with pytest.raises(ViewTooLargeError, match="the budget is 1000"):
        View(model(head="x" * 2000), budget=1000)


def test_showing_and_pickling_change_nothing() -> None:
    view = View(model(table()))
    first, second = view._repr_mimebundle_(), view._repr_mimebundle_(include=None, exclude=None)
    again = pickle.loads(pickle.dumps(view))
    assert first == second == again._repr_mimebundle_()
    assert first == {"text/plain": repr(view), "text/html": view.html()}


def test_rich_prints_the_text_in_the_width_of_its_console() -> None:
    view = View(model(table()))
    for width in (60, 140):
        console = Console(file=io.StringIO(), width=width, color_system=None)
        console.print(view)
        printed = [text.rstrip() for text in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
        assert printed == view.text(width).splitlines()


def test_colour_is_only_added_in_a_colour_terminal() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor")
    console.print(View(model(table())))
    assert "\x1b[" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in View(model(table())).text()


@pytest.mark.parametrize("width", [40, 80, 100])
def test_narrow_text_loses_no_name_and_stays_in_its_width(width: int) -> None:
    names = tuple(f"a_rather_long_field_name_{i}" for i in range(12))
    text = View(model(table(names=names))).text(width)
    assert max(map(len, text.splitlines())) <= width
    squeezed = re.sub(r"[\s│]", "", text)
    assert all(name in squeezed for name in names)


def test_columns_that_say_something_loud_are_never_folded() -> None:
    names = tuple(f"field_{i:02d}_of_the_agent_loop" for i in range(12))
    quiet = table(num_rows=1, names=names)
    loud = (*quiet.rows[0][:5], mark(State.MISSING), *quiet.rows[0][6:])
    lines = View(model(Table(quiet.columns, (loud,)))).text(100).splitlines()
    header = next(text for text in lines if text.startswith("rows"))
    assert "field_04_of_the_agent_loop" in header and "+11" in header
    folded = "\n".join(lines).split("+11 agent loop:")[1]
    assert "field_04" not in folded and all(name in folded for name in names if name != names[4])


def test_wide_characters_keep_columns_in_line() -> None:
    rows = ((cell("七七"), cell("x")), (cell("ab"), cell("y")))
    lines = View(ViewModel(cell("t"), tables=(Table((Column("k"), Column("v")), rows),))).text().splitlines()
    assert lines[-2:] == ["七七  x", "ab    y"]
