"""The JavaScript and the style sheet that travel with the package: hand-written, no build step, nothing from a network.

anywidget takes one module as text and cannot follow a relative import. The files are plain ES modules that import each
other, for editors and linters; here they are joined: imports of a neighbour and the word `export` go, the rest stays.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from kitlib.inspector.render.states import INKS

STATIC = Path(__file__).with_name("static")
SCRIPTS = ("names.js", "data.js", "filter.js", "draw.js", "toolbar.js", "panels.js", "keyboard.js", "view.js")

_IMPORT = re.compile(r'^import [^;]+ from "\./\w+\.js";\n', re.M)
_EXPORT = re.compile(r"^export (?!default)", re.M)


@cache
def module() -> str:
    """All scripts as one ES module."""
    texts = [(STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


@cache
def style_sheet() -> str:
    """The style sheet, with the inks of the glyphs."""
    return f".kitlib-inspector {{ {INKS} }}\n" + (STATIC / "inspector.css").read_text(encoding="utf-8")
