"""What a cell can say, and how each saying looks: one glyph, one colour in a page, one style in a terminal.

verl 0.9.1 has no counterpart. The colours are those of Okabe and Ito, which people with the common kinds of colour
blindness can tell apart; a state is never told by colour alone, its glyph or its words say the same. Page colours are
half-transparent layers over the reader's own background, so that light and dark themes both work without a style
sheet. No fixed colour of a glyph stands out from white and from black by 4.5 to 1; the two that are coloured are mixed
with the reader's own text colour (`INKS`), which is dark on light paper and light on dark paper. A viewer that does not
know the mixture shows them in the text colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

BLUE, VERMILLION, AMBER, GREEN, PURPLE = "#2f86c9", "#d55e00", "#b8860b", "#009e73", "#b4699b"

INKS = ";".join(
    f"--k{name}:color-mix(in srgb,currentColor 25%,{colour})" for name, colour in (("b", BLUE), ("p", PURPLE))
)
"""Style of an element around glyphs; a short name, because every cell repeats it."""


@dataclass(frozen=True)
class Look:
    """How one state is drawn.

    glyph:   the mark that stands alone in a cell ("" for states that colour a text).
    meaning: the words of the legend ("" for states that need no legend).
    css:     inline style in a page.
    style:   rich style in a terminal.
    """

    glyph: str
    meaning: str
    css: str
    style: str


class State(Enum):
    """The vocabulary of all views. The first block marks the cells of a presence table, the second colours words."""

    NEEDED = Look("■", "present, read by the next stage", "color:var(--kb)", "bold blue")
    PRESENT = Look("▪", "present", "color:var(--kb)", "blue")
    MISSING = Look("✗", "missing and needed now", "background:rgba(213,94,0,.4);font-weight:700", "bold white on red")
    LATE = Look("!", "absent, though an earlier stage writes it", "background:rgba(230,159,0,.3)", "yellow")
    OPTIONAL = Look("○", "optional and absent", "color:var(--kp)", "magenta")
    NOT_DUE = Look("·", "not due, or switched off", "opacity:.65", "dim")
    ABSENT = Look("-", "absent, nobody needs it now", "opacity:.65", "dim white")

    PLAIN = Look("", "", "", "")
    STRONG = Look("", "", "font-weight:700", "bold")
    DIM = Look("", "", "opacity:.65", "bright_black")
    GOOD = Look("", "", "background:rgba(0,158,115,.28);font-weight:700;padding:0 4px", "bold green")
    BAD = Look("", "", "background:rgba(213,94,0,.34);font-weight:700;padding:0 4px", "bold red")
    WARN = Look("", "", "background:rgba(230,159,0,.3);padding:0 3px;border-bottom:1px solid", "bold yellow")
    HIGH = Look("", "", "background:rgba(0,114,178,.3)", "cyan")
    LOW = Look("", "", "background:rgba(128,128,128,.2)", "magenta dim")

    @property
    def look(self) -> Look:
        """The drawing of this state."""
        return self.value
