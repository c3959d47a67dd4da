"""The panels below the grid: the static views and the sampler's wait, made while somebody has one of them open.

presence   rows that look the same in one line, and the sentences        (kitlib.inspector.presence)
groups     which groups teach something?                                 (kitlib.inspector.group_board)
waiting    what a callable says, such as ReplayBuffer.why_waiting, refreshed every second; or what a recording tells
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from kitlib.inspector.group_board_view import group_board
from kitlib.inspector.presence_view import presence
from kitlib.inspector.recording import Moment
from kitlib.inspector.render.printable import printable
from kitlib.inspector.view import View
from kitlib.inspector.why_waiting_view import why_waiting
from kitlib.inspector.widgets.pace import Pace

if TYPE_CHECKING:
    from kitlib.inspector.widgets.desk import Desk

CELL = "cell"  # the panel of the clicked cell, which the browser fills by itself


class Panels:
    """Which panels the views have open, and what is new for them.

    n: sessions a prompt should have, for the group board. why_waiting: returns a View, a report of the replay buffer,
    anything with `str`, or None. waiting_at: the same of a recorded moment.
    """

    def __init__(
        self,
        n: int | None = None,
        why_waiting: Callable[[], Any] | None = None,
        waiting_at: Callable[[Any], Any] | None = None,
    ) -> None:
        self._n, self._why_waiting, self._waiting_at = n, why_waiting, waiting_at
        self._open: dict[str, str] = {}  # view -> panel
        self._paces: dict[str, Pace] = {name: Pace() for name in ("presence", "groups", "waiting")}

    @property
    def names(self) -> list[str]:
        """The panels that can be opened."""
        can_tell = self._why_waiting is not None or self._waiting_at is not None
        return [CELL, "presence", "groups", *(["waiting"] if can_tell else [])]

    def choose(self, view: str, name: str) -> None:
        """A view opened this panel in place of another; it will be made anew."""
        self._open[view] = name
        if name in self._paces:
            self._paces[name] = Pace()
            self._paces[name].request()

    def forget(self, view: str) -> None:
        """A view is gone."""
        self._open.pop(view, None)

    def invalidate(self) -> None:
        """The queue changed."""
        for pace in self._paces.values():
            pace.request()

    def news(self, desk: Desk) -> Iterator[tuple[str, str]]:
        """(panel, HTML) of the open panels that are behind and may be made again."""
        for name in sorted({*self._open.values()} & self._paces.keys()):
            if name == "waiting":
                self._paces[name].request()  # seconds pass, though the queue stands still
            if self._paces[name].is_due():
                with self._paces[name]:
                    html = self._html(name, desk)
                yield name, html

    def _html(self, name: str, desk: Desk) -> str:
        shown = desk.shown
        try:
            if name == "presence":
                return presence(shown.snapshot, desk.stage, desk.config, shown.partition_id).html()
            if name == "groups":
                return group_board(shown.source, self._n, desk.config, shown.partition_id).html()
            return self._waiting(desk)
        except Exception as error:  # noqa: BLE001 - the callable is the reader's, and a panel must not stop the grid
            return _pre(f"{type(error).__name__}: {error}")

    def _waiting(self, desk: Desk) -> str:
        if self._why_waiting is not None and (desk.shown.is_live or self._waiting_at is None):
            said = self._why_waiting()
        else:
            assert self._waiting_at is not None, "offered only with one of the two"
            said = self._waiting_at(desk.shown.source) if isinstance(desk.shown.source, Moment) else None
        if said is None:
            return _pre("nothing is waiting")
        if hasattr(said, "verdict") and hasattr(said, "blocking"):
            said = why_waiting(said)
        return said.html() if isinstance(said, View) else _pre(str(said))


def _pre(text: str) -> str:
    """Plain text as HTML, line breaks kept."""
    lines = "\n".join(escape(printable(line)) for line in text.splitlines())
    return f'<pre style="margin:0;white-space:pre-wrap">{lines}</pre>'
