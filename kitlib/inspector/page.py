"""Several views on one page: a file that opens in any browser, without a script, an address or a style sheet of others.

verl 0.9.1 has no counterpart. Views bring their own inline styles; the page gives them the reader's own light or dark
background.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from kitlib.inspector.render.printable import printable
from kitlib.inspector.view import View

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 1.5rem auto; max-width: 100rem; padding: 0 1rem; background: Canvas; color: CanvasText;
       font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p { margin: .2rem 0 .6rem; max-width: 60rem; }
nav a { margin-right: 1em; white-space: nowrap; } section > div { overflow-x: auto; padding: .3rem 0; }
pre { overflow-x: auto; font-size: 12px; background: rgba(128,128,128,.12); padding: .5rem; }
"""


class Section(NamedTuple):
    """One view with a heading, a sentence above it, and the call that made it ("" to leave it out)."""

    name: str
    view: View
    text: str = ""
    call: str = ""


def write_page(sections: Sequence[Section], title: str, text: str = "") -> str:
    """The page as HTML."""
    links = " ".join(f'<a href="#{_anchor(one.name)}">{_text(one.name)}</a>' for one in sections)
    intro = f"<p>{_text(text)}</p>" if text else ""
    body = "".join(map(_section, sections))
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style></head><body><h1>{_text(title)}</h1>{intro}<nav>{links}</nav>{body}</body></html>\n"
    )


def _section(one: Section) -> str:
    call = f"<pre>{_text(one.call)}</pre>" if one.call else ""
    text = f"<p>{_text(one.text)}</p>" if one.text else ""
    heading = f'<h2 id="{_anchor(one.name)}">{_text(one.name)}</h2>'
    return f"<section>{heading}{text}{call}<div>{one.view.html()}</div></section>"


def _text(text: str) -> str:
    return escape("\n".join(printable(line) for line in text.split("\n")))


def _anchor(name: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in name)
