"""The desk: it keeps what the browser shows up to date, by numbered messages on the data comm.

verl 0.9.1 has no counterpart. The desk knows no widget library: it speaks to an `Outlet`, so tests listen in.

    whole    the state of a fresh view, or of one that missed a number
    delta    what changed; one a look at most; every message carries the frame (verdict, counts, time, ..)
    panel    HTML of a panel that is open

What the reader asks for comes through `requests`. One lock: looks come from the watcher's thread, requests from
another.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from kitlib.inspector.judgement import check_stage, judge
from kitlib.inspector.names import ShortNames
from kitlib.inspector.presence_rows import PresenceRows
from kitlib.inspector.presence_words import verdict
from kitlib.inspector.render.printable import printable
from kitlib.inspector.render.states import State
from kitlib.inspector.selection import select
from kitlib.inspector.widgets.feed import Feed
from kitlib.inspector.widgets.pace import Pace
from kitlib.inspector.widgets.palette import palette
from kitlib.inspector.widgets.panels import Panels
from kitlib.inspector.widgets.shown import Shown
from kitlib.inspector.widgets.wire import Change, names_blob

Message = dict[str, Any]
MANY = 20_000  # keys; with more, a verdict takes long enough to be waited for


class Outlet(Protocol):
    """The way to the browser."""

    def whole(self, frame: Message, palette: Message, names: bytes, marks: bytes, cells: bytes) -> None:
        """Replace what every view shows."""

    def push(self, content: Message, buffers: list[bytes]) -> None:
        """Send to every view, on the data comm."""

    def reply(self, content: Message) -> None:
        """Answer on the control comm."""


class Desk:
    """What one widget shows, and by which stage it is judged. See the module."""

    def __init__(
        self,
        feed: Feed,
        outlet: Outlet,
        panels: Panels,
        stage: str | None = None,
        config: Any = None,
        partition_id: str | None = None,
    ) -> None:
        if stage is not None:
            check_stage(stage)
        self.lock = threading.RLock()
        self.feed, self.outlet, self.panels = feed, outlet, panels
        self.stage, self.config = stage, config
        self.shown = Shown(feed, partition_id, "val" if stage == "validate" else "train")
        self.trouble = ""
        self.number = 0  # of the last message that changed the grid
        self._pace = Pace()  # of the verdict
        self._headline = ("judging ..", State.DIM.name)
        if feed.is_live and len(self.shown.grid.keys) > MANY:
            self._pace.request()  # the watcher judges, after the first picture is out
        else:
            self._judge()

    # -- moving on ----------------------------------------------------------------------------------------------------

    def look(self, changed: bool, catch_up: bool = True) -> bool:
        """Show what is new in the queue; False when there will be nothing new any more. Called by the watcher.

        catch_up: verdict and panels, too, if they are behind and their time has come.
        """
        with self.lock:
            has_ended = self.feed.has_ended
            try:
                if changed and self.shown.is_live:
                    self._follow()
                if catch_up:
                    self._catch_up()
            except Exception as error:  # noqa: BLE001 - whatever it is, the reader must see that the grid stands still
                self.trouble = printable(f"no longer live: {type(error).__name__}: {error}")
                self._delta(Change.nothing())
                return False
            if has_ended:
                self.trouble = "the queue is closed: this is its last picture"
                self._delta(Change.nothing())
            return not has_ended

    def open(self) -> None:
        """Hand the whole state to the outlet: before a widget is displayed, and to a view that lost count."""
        with self.lock:
            self.number += 1
            grid = self.shown.grid
            static = palette(grid.fields, self.config, grid.partition_id)
            cells = (grid.codes > 0).tobytes()
            self.outlet.whole(self._frame(), static, names_blob(grid.names), grid.marks.tobytes(), cells)

    def show_partition(self, partition_id: str) -> None:
        """Show another partition."""
        with self.lock:
            self.shown.choose(partition_id)
            self.panels.invalidate()
            self._judge()
            self.open()

    def show_stage(self, stage: str | None) -> None:
        """Judge by another stage. Raises UnknownStageError."""
        if stage is not None:
            check_stage(stage)
        with self.lock:
            self.stage = stage
            self.panels.invalidate()
            self._tell(Change.nothing())

    def follow(self) -> None:
        """Show the newest picture, and every one that follows."""
        with self.lock:
            self.panels.invalidate()
            self._tell(self.shown.newest())

    def freeze(self) -> None:
        """Keep what is shown now."""
        with self.lock:
            self._tell(self.shown.freeze())

    def show_moment(self, at: int) -> None:
        """Show a recorded snapshot, counted from 0; negative from the end. Raises IndexError."""
        with self.lock:
            change = self.shown.moment(at)
            self.panels.invalidate()
            self._tell(change)

    # -- sending ------------------------------------------------------------------------------------------------------

    def push_panels(self) -> None:
        """Send the open panels that are behind."""
        for name, html in self.panels.news(self):
            self.outlet.push({"kind": "panel", "name": name, "html": html}, [])

    def _follow(self) -> None:
        """One look: what changed goes out at once, verdict and panels when their time has come."""
        change = self.shown.go_on()
        if change is not None and not change:
            return
        self.panels.invalidate()
        self._pace.request()
        self.open() if change is None else self._delta(change)

    def _catch_up(self) -> None:
        if self._pace.is_due():
            self._tell(Change.nothing())
        self.push_panels()

    def _tell(self, change: Change | None) -> None:
        """Send a change with a fresh verdict; None is the whole state."""
        self._judge()
        self.open() if change is None else self._delta(change)

    def _delta(self, change: Change) -> None:
        self.number += 1
        self.outlet.push({"kind": "delta", "frame": self._frame()}, change.buffers() if change else [])

    def _judge(self) -> None:
        with self._pace:
            self.feed.refresh()
            self._headline = self._verdict()

    def _verdict(self) -> tuple[str, str]:
        snapshot, partition_id = self.shown.snapshot, self.shown.partition_id
        part = snapshot.partitions.get(partition_id)
        if part is None:
            return f"no partition {printable(partition_id)} yet", State.DIM.name
        judgement = judge(self.stage, self.config, partition_id)
        rows = PresenceRows(select(snapshot, partition_id), judgement, ShortNames(part.keys))
        said, state = verdict(rows)
        return printable(said), state.name

    def _frame(self) -> Message:
        """What every message carries."""
        shown, num_moments = self.shown, len(self.feed.moments)
        return {
            "seq": self.number,
            "sent_at": time.time(),
            "taken_at": shown.taken_at,
            "partition": shown.partition_id,
            "partitions": [[name, number] for name, number in shown.counts.items()],
            "num_fields": len(shown.grid.fields),
            "words": list(shown.grid.words),
            "stage": self.stage or "",
            "headline": self._headline,
            "trouble": self.trouble,
            "label": printable(shown.label),
            "live": self.feed.is_live,
            "readable": hasattr(shown.source, "kv_batch_get"),
            "following": shown.is_following,
            "at": shown.at,
            "moments": num_moments,
            "panels": self.panels.names,
        }
