"""HtmlInspector: the rows in pages of 50, with ipywidgets' own controls and no JavaScript of ours.

For a front end that cannot load anywidget's module (no network in some editors, a strict content policy). Slower and
plainer than Inspector, same facts; a page is made anew twice a second at most.
"""

from __future__ import annotations

import threading
import weakref
from types import TracebackType
from typing import Any

from kitlib.contract import STAGES
from kitlib.inspector.judgement import check_stage
from kitlib.inspector.render.printable import printable
from kitlib.inspector.view import View
from kitlib.inspector.widgets.feed import Feed
from kitlib.inspector.widgets.need import need
from kitlib.inspector.widgets.page import page
from kitlib.inspector.widgets.still import Display, as_bundle, bundle_of, has_kernel, still_views
from kitlib.inspector.widgets.watcher import Watcher

NO_STAGE = "(none)"
PERIOD = 0.5  # seconds between two pages at least: a page is 20 KB and takes the browser some 50 ms

_on_a_page: set[HtmlInspector] = set()  # displayed and not closed: ipywidgets does not tell when a page is gone


class HtmlInspector:
    """The paged table. Arguments as of Inspector.

    Raises NotebookExtraError, UnknownStageError, EmptyRecordingError.
    """

    def __init__(
        self, source: Any, stage: str | None = None, config: Any = None, partition_id: str | None = None
    ) -> None:
        if stage is not None:
            check_stage(stage)
        self._lock = threading.RLock()
        self._feed = Feed.of(source)
        self._config, self._number = config, 0
        self._snapshot = self._feed.newest()
        self._controls = _Controls(need("ipywidgets"), weakref.WeakMethod(self._asked))
        names = self._snapshot.partitions
        self._controls.partition.options = self._partitions(partition_id or "train")
        self._controls.partition.value = partition_id or ("train" if "train" in names else next(iter(names), "train"))
        self._controls.stage.value = stage or NO_STAGE
        self._watcher = Watcher(self._feed, self, PERIOD)
        self._display = Display()
        self._finalizer = weakref.finalize(self, _shut, self._watcher, self._controls.box)
        self._paint()

    @property
    def stage(self) -> str | None:
        """The stage that judges the rows."""
        chosen = self._controls.stage.value
        return None if chosen == NO_STAGE else chosen

    @property
    def partition_id(self) -> str:
        """The partition that is shown."""
        return self._controls.partition.value

    def look(self, changed: bool) -> bool:
        """Show the queue as it is now; False once it is closed. Called by the watcher."""
        if self._feed.has_ended:
            self._controls.said.value = "the queue is closed: this is its last picture"
            return False
        if changed:
            with self._lock:
                self._snapshot = self._feed.newest()
                options = self._partitions(self.partition_id)
                if list(self._controls.partition.options) != options:
                    self._controls.partition.options = options
                self._paint()
        return True

    def close(self) -> None:
        """End the thread, close the controls, and leave the final state as static views."""
        if self._finalizer.alive:
            self._watcher.stop()
            self._display.replace(as_bundle(self._still()))
            _on_a_page.discard(self)
            self._finalizer()

    def __enter__(self) -> HtmlInspector:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return as_bundle(self._still())["text/plain"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        still = as_bundle(self._still())
        if not self._finalizer.alive or not has_kernel():
            return still
        if self._feed.is_live:
            self._watcher.start()
            _on_a_page.add(self)
        return {**bundle_of(self._controls.box), **still}

    def _ipython_display_(self) -> None:
        self._display.show(self._repr_mimebundle_())

    def _still(self) -> list[View]:
        return still_views(self._snapshot, self._snapshot, self.stage, self._config, self.partition_id, None)

    def _partitions(self, at_least: str) -> list[str]:
        return list(dict.fromkeys([*self._snapshot.partitions, at_least]))

    def _asked(self, step: int) -> None:
        """A control was used: another page (step), or another filter, partition or stage (0)."""
        with self._lock:
            self._number = self._number + step if step else 0
            self._paint()

    def _paint(self) -> None:
        controls = self._controls
        made = page(self._snapshot, self.stage, self._config, self.partition_id, controls.filter.value, self._number)
        self._number = made.number
        controls.table.value = made.view.html()
        controls.said.value = printable(f"page {made.number + 1} of {made.num_pages}")
        controls.back.disabled, controls.on.disabled = made.number == 0, made.number + 1 >= made.num_pages


class _Controls:
    """The ipywidgets of the page."""

    def __init__(self, widgets: Any, asked: weakref.WeakMethod) -> None:
        self.partition = widgets.Dropdown(options=["train"], description="partition")
        self.stage = widgets.Dropdown(options=[NO_STAGE, *STAGES], description="next stage")
        self.filter = widgets.Text(placeholder="part of a key, * and ?", description="filter", continuous_update=False)
        self.back, self.on = widgets.Button(description="Prev"), widgets.Button(description="Next")
        self.said, self.table = widgets.Label(), widgets.HTML()
        for control in (self.partition, self.stage, self.filter):
            control.observe(lambda change: _call(asked, 0), names="value")
        self.back.on_click(lambda button: _call(asked, -1))
        self.on.on_click(lambda button: _call(asked, 1))
        top = widgets.HBox([self.partition, self.stage, self.filter])
        self.box = widgets.VBox([top, widgets.HBox([self.back, self.on, self.said]), self.table])


def _call(asked: weakref.WeakMethod, step: int) -> None:
    """Tell the inspector, unless it is being made or is gone: its controls do not keep it alive."""
    method = asked()
    if method is not None and hasattr(method.__self__, "_finalizer"):
        method(step)


def _shut(watcher: Watcher, box: Any) -> None:
    watcher.stop(wait=False)
    for line in box.children:
        for control in getattr(line, "children", ()):
            control.close()
        line.close()
    box.close()
