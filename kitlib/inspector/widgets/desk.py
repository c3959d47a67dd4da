"""The conversation with the browser: what is shown now, what changed, and answers to what the reader asks.

verl 0.9.1 has no counterpart. The desk knows no widget library: it speaks to an `Outlet`, so tests listen in.

    kernel -> browser, on the data comm                   browser -> kernel, on the control comm
      whole(..)      the state of a fresh or lost view      hello, bye, resync    a view opens, closes, missed a number
      delta          one a look at most, numbered           partition, stage, follow, moment
      panel          HTML or text of an open panel          panel                 a panel is opened or closed
    kernel -> browser, on the control comm                  detail                a cell was clicked
      hello, detail  answers

Two comms, because ipykernel hands a click to the thread that sent last on its comm: pushing on the control comm would
make clicks wait for the cell that is running. One lock: looks come from the watcher's thread, requests from another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from kitlib.contract import STAGES
from kitlib.inspector.judgement import check_stage, judge
from kitlib.inspector.names import ShortNames
from kitlib.inspector.presence_rows import PresenceRows
from kitlib.inspector.presence_words import verdict
from kitlib.inspector.render.printable import printable
from kitlib.inspector.render.states import State
from kitlib.inspector.selection import select
from kitlib.inspector.widgets.detail import describe, read_value
from kitlib.inspector.widgets.feed import Feed
from kitlib.inspector.widgets.grid import Grid
from kitlib.inspector.widgets.pace import Pace
from kitlib.inspector.widgets.palette import palette
from kitlib.inspector.widgets.panels import Panels
from kitlib.inspector.widgets.wire import Change, names_blob
from kitlib.transfer_queue import PartitionSnapshot, QueueSnapshot

Message = dict[str, Any]


class Outlet(Protocol):
    """The way to the browser."""

    def whole(self, frame: Message, palette: Message, names: bytes, marks: bytes, cells: bytes) -> None:
        """Replace what every view shows."""

    def push(self, content: Message, buffers: list[bytes]) -> None:
        """Send to every view, on the data comm."""

    def reply(self, content: Message) -> None:
        """Answer on the control comm."""


class Desk:
    """What one widget shows: partition, stage, moment. See the module."""

    def __init__(
        self,
        feed: Feed,
        outlet: Outlet,
        panels: Panels,
        *,
        stage: str | None = None,
        config: Any = None,
        partition_id: str | None = None,
        tokenizer: Any = None,
    ) -> None:
        if stage is not None:
            check_stage(stage)
        self.lock = threading.RLock()
        self.feed, self.outlet, self.panels = feed, outlet, panels
        self.stage, self.config, self.tokenizer = stage, config, tokenizer
        self.snapshot = feed.newest()
        self.is_following, self.at = True, max(0, len(feed.moments) - 1)
        self.trouble = ""
        self.views: set[str] = set()
        self._number = 0  # of the last message that changed the grid
        self._pace = Pace()
        self._partition(partition_id or self._first_partition())

    # -- what is shown ------------------------------------------------------------------------------------------------

    @property
    def partition_id(self) -> str:
        """The partition that is shown; it need not exist yet."""
        return self._grid.partition_id

    @property
    def part(self) -> PartitionSnapshot | None:
        """Its picture."""
        return self.snapshot.partitions.get(self.partition_id)

    def show_partition(self, partition_id: str) -> None:
        """Show another partition."""
        with self.lock:
            self._partition(partition_id)
            self._whole()

    def show_stage(self, stage: str | None) -> None:
        """Judge by another stage. Raises UnknownStageError."""
        if stage is not None:
            check_stage(stage)
        with self.lock:
            self.stage = stage
            self._judge()
            self.panels.invalidate()
            self._delta(Change.nothing())

    def follow(self) -> None:
        """Show the newest picture, and every one that follows."""
        with self.lock:
            self.is_following, self.at = True, max(0, len(self.feed.moments) - 1)
            self._show(self.feed.newest())

    def freeze(self) -> None:
        """Keep what is shown now."""
        with self.lock:
            self.is_following = False
            self._delta(Change.nothing())

    def show_moment(self, at: int) -> None:
        """Show a recorded snapshot, counted from 0; negative from the end. Raises IndexError."""
        with self.lock:
            moments = self.feed.moments
            snapshot = moments[at]
            self.is_following, self.at = False, at % len(moments)
            self._show(snapshot)

    def look(self, changed: bool) -> bool:
        """Show what is new in the queue; False when there will be nothing new any more. Called by the watcher."""
        with self.lock:
            ended = self.feed.has_ended
            try:
                if changed and self.is_following and not ended:
                    self._show(self.feed.newest(), judge=False)
                self._catch_up()
            except Exception as error:  # noqa: BLE001 - whatever it is, the reader must see that the grid stands still
                self.trouble = printable(f"no longer live: {type(error).__name__}: {error}")
                self._delta(Change.nothing())
                return False
            if ended:
                self.trouble = "the queue is closed: this is its last picture"
                self._delta(Change.nothing())
            return not ended

    def open(self) -> None:
        """Hand the whole state to the outlet: called before a widget is displayed."""
        with self.lock:
            self._whole()

    # -- requests -----------------------------------------------------------------------------------------------------

    def handle(self, message: Message) -> None:
        """Do what a view asks for. A message that is no request of ours is passed over."""
        handler: Callable[[Message], None] | None = getattr(self, f"_on_{message.get('kind')}", None)
        if handler is not None:
            with self.lock:
                handler(message)

    def _on_hello(self, message: Message) -> None:
        self.views.add(message["view"])
        self.outlet.reply({"kind": "hello", "view": message["view"]})
        if message["seq"] != self._number:
            self._whole()

    def _on_bye(self, message: Message) -> None:
        self.views.discard(message["view"])
        self.panels.forget(message["view"])

    def _on_resync(self, message: Message) -> None:
        self._whole()

    def _on_partition(self, message: Message) -> None:
        self.show_partition(message["id"])

    def _on_stage(self, message: Message) -> None:
        self.show_stage(message["name"] if message["name"] in STAGES else None)

    def _on_follow(self, message: Message) -> None:
        self.follow() if message["on"] else self.freeze()

    def _on_moment(self, message: Message) -> None:
        if 0 <= message["at"] < len(self.feed.moments):
            self.show_moment(message["at"])

    def _on_panel(self, message: Message) -> None:
        self.panels.choose(message["view"], message["name"])
        self._push_panels()

    def _on_detail(self, message: Message) -> None:
        key, field = self._grid.key_of(message["row"]), message["field"]
        if message["values"]:
            facts = read_value(self.feed, self.partition_id, key, field, self.tokenizer)
        else:
            facts = describe(self.feed, self.part, key, field)
        answer = {name: message[name] for name in ("kind", "view", "row", "field", "values")}
        self.outlet.reply({**answer, "facts": facts})

    # -- sending ------------------------------------------------------------------------------------------------------

    def _first_partition(self) -> str:
        wanted = "val" if self.stage == "validate" else "train"
        return wanted if wanted in self.snapshot.partitions else next(iter(self.snapshot.partitions), wanted)

    def _partition(self, partition_id: str) -> None:
        self._grid = Grid(partition_id)
        self._grid.update(self.part)
        self.panels.invalidate()
        self._judge()

    def _show(self, snapshot: QueueSnapshot, judge: bool = True) -> None:
        """Show a picture. A look leaves the verdict to `_catch_up`, which keeps its cost down."""
        is_new, self.snapshot = snapshot is not self.snapshot, snapshot
        change = self._grid.update(self.part)
        if is_new:
            self.panels.invalidate()
            self._pace.request()
        if judge:
            self._judge()
        if change is None:
            self._whole()
        elif change or judge:
            self._delta(change)

    def _catch_up(self) -> None:
        """Verdict and panels, when they are behind and the time they take may be spent again."""
        if self._pace.is_due():
            self._judge()
            self._delta(Change.nothing())
        self._push_panels()

    def _judge(self) -> None:
        with self._pace:
            self._headline = self._verdict()

    def _verdict(self) -> tuple[str, str]:
        part = self.part
        if part is None:
            return f"no partition {printable(self.partition_id)} yet", State.DIM.name
        judgement = judge(self.stage, self.config, self.partition_id)
        rows = PresenceRows(select(self.snapshot, self.partition_id), judgement, ShortNames(part.keys))
        said, state = verdict(rows)
        return printable(said), state.name

    def _push_panels(self) -> None:
        for name, html in self.panels.news(self):
            self.outlet.push({"kind": "panel", "name": name, "html": html}, [])

    def _delta(self, change: Change) -> None:
        self._number += 1
        self.outlet.push({"kind": "delta", "frame": self._frame()}, change.buffers() if change else [])

    def _whole(self) -> None:
        self._number += 1
        grid = self._grid
        static = palette(grid.fields, self.config, self.partition_id)
        cells = (grid.codes > 0).tobytes()
        self.outlet.whole(self._frame(), static, names_blob(grid.names), grid.marks.tobytes(), cells)

    def _frame(self) -> Message:
        """Everything that every message carries."""
        partitions = {name: len(part.keys) for name, part in self.snapshot.partitions.items()}
        moments = self.feed.moments
        return {
            "seq": self._number,
            "sent_at": time.time(),
            "taken_at": self.snapshot.taken_at,
            "partition": self.partition_id,
            "partitions": [[name, number] for name, number in {self.partition_id: 0, **partitions}.items()],
            "num_rows": len(self._grid.keys),
            "num_fields": len(self._grid.fields),
            "words": list(self._grid.words),
            "stage": self.stage or "",
            "headline": self._headline,
            "trouble": self.trouble,
            "live": self.feed.is_live,
            "following": self.is_following,
            "at": self.at,
            "moments": len(moments),
            "panels": self.panels.names,
        }
