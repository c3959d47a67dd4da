"""What a check says: right, not yet (with the likely mistake), or not answered.

A check never raises on a wrong answer: a notebook runs to its end whether or not its reader has filled in the blanks.
Tests look at `.ok`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kitlib.inspector import View
from kitlib.inspector.render.model import ViewModel, cell, line
from kitlib.inspector.render.states import State


class Answer(View):
    """The verdict on an answer, shown as a view. `ok`: True right, False wrong, None not answered yet.

    says: what the reader is told, one sentence a line.
    """

    def __init__(self, ok: bool | None, says: Iterable[str]) -> None:
        self.ok = ok
        self.says = tuple(says)
        word, state = _WORDS[ok]
        first, *others = self.says
        super().__init__(ViewModel(line((word, state), first), notes=tuple(cell(text) for text in others)))


_SEVERAL = (list, tuple, set, frozenset)
_WORDS = {True: ("RIGHT", State.GOOD), False: ("NOT YET", State.BAD), None: ("NOT ANSWERED YET", State.WARN)}


def right(*says: str) -> Answer:
    """Right, and what there is to say about it."""
    return Answer(True, says)


def mistakes(says: Iterable[str]) -> Answer:
    """Wrong, for these reasons."""
    return Answer(False, says)


def unanswered(*answers: Any) -> bool:
    """True if one of the blanks is still `...`, or a list or set with a `...` in it."""
    return any(answer is ... or (isinstance(answer, _SEVERAL) and unanswered(*answer)) for answer in answers)


def open_answer() -> Answer:
    """There is a blank left."""
    return Answer(None, ["replace the ... by your answer and run this cell again"])
