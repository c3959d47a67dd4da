"""Inspector: a live grid of keys x fields in a notebook, beside a run or over a recording of one.

verl 0.9.1 has no counterpart. The grid is a canvas, so 100,000 rows scroll as lightly as 10; the kernel sends what
changed, five times a second at most, and nothing while nothing changes.

    made ──> displayed ──> watching (one thread) ──> closed: its outputs become static views
                 every view gone from the page ──> collected like any object when nobody holds it
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kitlib.inspector.view import View
from kitlib.inspector.widgets.desk import Desk, Message
from kitlib.inspector.widgets.feed import Feed
from kitlib.inspector.widgets.need import need
from kitlib.inspector.widgets.panels import Panels
from kitlib.inspector.widgets.requests import Requests
from kitlib.inspector.widgets.still import Display, as_bundle, bundle_of, has_kernel, still_views
from kitlib.inspector.widgets.watcher import Watcher

if TYPE_CHECKING:
    from kitlib.inspector.widgets.comms import CommOutlet

_on_a_page: set[Inspector] = set()  # a page shows them, so they live, though no variable may hold them


class Inspector:
    """Keys x fields of a queue, live, coloured by what the next stage needs; with tabs, filter, detail and time slider.

        Inspector(tq, stage="compute_advantage", config=config)     in a cell, before or above trainer.fit(..)

    source:      a queue, or a recording (open_recording, an object with `snapshots`, a list of QueueSnapshot, or one).
    stage:       judge by this stage of the contract (it can be chosen in the widget); None judges nothing.
    config:      anything the contract can read; None means verl's defaults.
    partition_id: shown first; default train (val for the stage validate).
    history:     of a live queue: a recording whose moments the time slider offers; it may grow.
    n:           sessions a prompt should have, for the group board; None takes it from the config.
    why_waiting: called while its panel is open, such as trainer.replay_buffer.why_waiting; a recording tells by itself.
    tokenizer:   decodes token fields of a cell whose values are asked for; None: that of the model that the config or
                 the recording names.
    hz:          looks a second at most.  height: of the grid in pixels.
    Raises NotebookExtraError, UnknownStageError, EmptyRecordingError.
    """

    def __init__(
        self,
        source: Any,
        stage: str | None = None,
        config: Any = None,
        partition_id: str | None = None,
        *,
        history: Any = None,
        n: int | None = None,
        why_waiting: Callable[[], Any] | None = None,
        tokenizer: Any = None,
        hz: float = 5.0,
        height: int = 420,
    ) -> None:
        need("ipywidgets"), need("anywidget")
        from kitlib.inspector.widgets.comms import CommOutlet

        self._n = n
        self._feed = Feed.of(source, history)
        self._outlet: CommOutlet = CommOutlet(height)
        self._desk = Desk(
            self._feed, self._outlet, Panels(n, why_waiting, self._feed.waiting_at), stage, config, partition_id
        )
        self._requests = Requests(self._desk, tokenizer)
        self._watcher = Watcher(self._feed, self._desk, period=1 / hz)
        self._display = Display()
        self._outlet.control.on_msg(_Forward(self))
        self._finalizer = weakref.finalize(self, _shut, self._watcher, self._outlet)

    # -- steering -----------------------------------------------------------------------------------------------------

    @property
    def stage(self) -> str | None:
        """The stage that colours the grid; set it to choose another."""
        return self._desk.stage

    @stage.setter
    def stage(self, stage: str | None) -> None:
        self._desk.show_stage(stage)

    @property
    def partition_id(self) -> str:
        """The partition that is shown; set it to choose another."""
        return self._desk.shown.partition_id

    @partition_id.setter
    def partition_id(self, partition_id: str) -> None:
        self._desk.show_partition(partition_id)

    def follow(self) -> None:
        """Show the newest picture, and every one that follows."""
        self._desk.follow()

    def freeze(self) -> None:
        """Keep what is shown now; the run goes on."""
        self._desk.freeze()

    def show_moment(self, at: int) -> None:
        """Show a recorded snapshot by its number. Raises IndexError."""
        self._desk.show_moment(at)

    def close(self) -> None:
        """End the thread, close the comms, and leave the final state as static views in place of the widget."""
        if not self._finalizer.alive:
            return
        self._watcher.stop()
        self._display.replace(as_bundle(self._still()))
        _on_a_page.discard(self)
        self._finalizer()

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return not self._finalizer.alive

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- showing ------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """What is shown now as plain text."""
        return as_bundle(self._still())["text/plain"]

    def html(self) -> str:
        """What is shown now as one piece of a page, without script."""
        return as_bundle(self._still())["text/html"]

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The static views, and in a notebook kernel the widget beside them."""
        if self.is_closed or not has_kernel():
            return as_bundle(self._still())
        still = as_bundle(self._still(is_first=True))
        self._desk.open()
        if self._feed.is_live:
            self._watcher.start()
        _on_a_page.add(self)
        return {**bundle_of(self._outlet.control), **still}

    def _ipython_display_(self) -> None:
        self._display.show(self._repr_mimebundle_())

    def _still(self, is_first: bool = False) -> list[View]:
        """The static views of what is shown; of a live queue that is being followed, as it is now."""
        desk, shown = self._desk, self._desk.shown
        with desk.lock:
            if shown.is_live and not self.is_closed:
                desk.look(changed=True, catch_up=False)
            arguments = (desk.stage, desk.config, shown.partition_id, self._n, is_first)
            return still_views(shown.snapshot, shown.source, *arguments)

    def _handle(self, message: Message) -> None:
        self._requests.handle(message)
        if message.get("kind") == "bye" and not self._requests.views:
            _on_a_page.discard(self)
        elif message.get("kind") == "hello":
            _on_a_page.add(self)


class _Forward:
    """Passes requests on without keeping the inspector alive: ipywidgets keeps every open widget and its handlers."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = weakref.ref(inspector)

    def __call__(self, widget: Any, content: Message, buffers: Any) -> None:
        inspector = self._inspector()
        if inspector is not None and not inspector.is_closed:
            inspector._handle(content)


def _shut(watcher: Watcher, outlet: CommOutlet) -> None:
    """What close and garbage collection have in common."""
    watcher.stop(wait=False)
    outlet.close()
