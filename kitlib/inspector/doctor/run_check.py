"""`RunCheck`: the seven answers of `check_run`, as text, as a page and as objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kitlib.inspector.render.model import Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.view import View

LOOKS = {"ok": State.GOOD, "failed": State.BAD, "not known": State.WARN, "not reached": State.DIM}


@dataclass(frozen=True)
class Answer:
    """state: ok, failed, not known (the run does not tell), not reached (an earlier question failed)."""

    number: int
    question: str
    state: str
    says: str


@dataclass(frozen=True)
class RunCheck:
    """The answers in their order. `failed` is the one that stopped it, None if none did."""

    answers: tuple[Answer, ...]

    @property
    def failed(self) -> Answer | None:
        return next((one for one in self.answers if one.state == "failed"), None)

    @property
    def ok(self) -> bool:
        return self.failed is None

    @property
    def view(self) -> View:
        failed = self.failed
        verdict = f"STOPPED AT {failed.number}: {failed.question}" if failed else "seven questions, none failed"
        rows = tuple(
            (cell(one.number), line((one.state, LOOKS[one.state])), cell(one.question), cell(one.says))
            for one in self.answers
        )
        columns = (Column("", align="right"), Column("answer"), Column("question", flow=True), Column("why", flow=True))
        head = line((verdict, State.BAD if failed else State.GOOD))
        return View(ViewModel(head, tables=(Table(columns, rows, row_noun="questions"),)))

    def text(self, width: int = 100) -> str:
        return self.view.text(width)

    def html(self) -> str:
        return self.view.html()

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.view._repr_mimebundle_(include, exclude)
