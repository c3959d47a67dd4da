"""Read a view back: what a page says and what a text says, without markup, layout or line breaks."""

from __future__ import annotations

from html.parser import HTMLParser

from kitlib.inspector.render.model import Cell, ViewModel
from kitlib.inspector.render.printable import printable
from kitlib.inspector.view import View

WIDE = 4000  # characters: no line breaks, no folding


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parse(view: View) -> _Page:
    page = _Page()
    page.feed(view.html())
    page.close()
    return page


def squeeze(text: str) -> str:
    """Without blanks: how a line was broken or padded does not matter."""
    return "".join(text.split())


def facts(model: ViewModel) -> list[str]:
    """Everything a model says, each with its blanks removed."""
    cells: list[Cell] = [model.headline, model.facts, *model.notes]
    for table in model.tables:
        cells += [table.caption, *(one for row in table.rows for one in row)]
    words = [span.text for one in cells for span in one.spans]
    for table in model.tables:
        words += [name for column in table.columns for name in (column.name, column.group)]
    words += [word for state in model.legend for word in (state.look.glyph, state.look.meaning)]
    return [squeeze(printable(word)) for word in words if word.strip()]


def assert_same_facts(view: View) -> None:
    """Text and page carry every fact of the model, equally often where it is long enough to be counted."""
    text, page = squeeze(view.text(WIDE)), squeeze("".join(parse(view).words))
    for fact in facts(view.model):
        assert fact in text, f"not in the text: {fact}"
        assert fact in page, f"not in the page: {fact}"
        if len(fact) > 3:
            assert text.count(fact) == page.count(fact), f"{fact}: not as often in the text as in the page"
