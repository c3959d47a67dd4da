"""The static side of a widget: the same facts as text and HTML, for a saved notebook, a log and a terminal.

A widget alone leaves nothing readable in a file. Its MIME bundle therefore carries the views, and when it closes, its
output is replaced by them (`Display.replace`), so that the saved page shows the final state.
"""

from __future__ import annotations

import uuid
from typing import Any

from kitlib.inspector.group_board_view import group_board
from kitlib.inspector.partitions_view import partitions
from kitlib.inspector.presence_view import presence
from kitlib.inspector.render.model import ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.inspector.view import View
from kitlib.inspector.widgets.need import need
from kitlib.transfer_queue import PartitionSnapshot, QueueSnapshot

MAX_ROWS = 10_000  # with more, counts stand for the rows: a widget is displayed within a second
REWARDS = "rm_scores"


def still_views(
    snapshot: QueueSnapshot,
    source: Any,
    stage: str | None,
    config: Any,
    partition_id: str,
    n: int | None,
    is_first: bool = False,
) -> list[View]:
    """The views that stand for the widget.

    source: where the group board may read rewards; a snapshot, which has none, leaves it out. is_first: the widget is
    about to be displayed, and of a large queue only counts are wanted.
    """
    part = snapshot.partitions.get(partition_id)
    if part is not None and len(part.keys) > MAX_ROWS:
        return [_counts(snapshot) if is_first else partitions(snapshot)]
    views = [presence(snapshot, stage, config, partition_id)]
    if part is not None and hasattr(source, "kv_batch_get") and _has_rewards(part):
        views.append(group_board(source, n, config, partition_id))
    return views


def _counts(snapshot: QueueSnapshot) -> View:
    """How many keys each partition has: all that can be said of a large queue without going through it."""
    said = [f"{name}: {count(len(part.keys), 'key')}" for name, part in snapshot.partitions.items()]
    return View(
        ViewModel(line(*said), notes=(cell("the views are written here when the widget is closed", State.DIM),))
    )


def _has_rewards(part: PartitionSnapshot) -> bool:
    return REWARDS in part.fields and bool(part.keys)


def as_bundle(views: list[View]) -> dict[str, str]:
    """Text and HTML of views, one below the other."""
    return {
        "text/plain": "\n\n".join(view.text() for view in views),
        "text/html": "".join(view.html() for view in views),
    }


class Display:
    """The outputs in which a widget is shown. Each has an id of its own: showing under a known id would make the page
    build the earlier views anew."""

    def __init__(self) -> None:
        self._ids: list[str] = []

    def show(self, bundle: dict[str, Any]) -> None:
        """Put the bundle into the output of the running cell."""
        self._ids.append(uuid.uuid4().hex)
        need("IPython.display").display(bundle, raw=True, display_id=self._ids[-1])

    def replace(self, bundle: dict[str, Any]) -> None:
        """Put the bundle in place of everything shown so far."""
        for display_id in self._ids:
            need("IPython.display").update_display(bundle, raw=True, display_id=display_id)


def has_kernel() -> bool:
    """True in a notebook kernel, False in a terminal and in a script: nobody could show a widget there."""
    shell = need("IPython").get_ipython()
    return getattr(shell, "kernel", None) is not None


def bundle_of(widget: Any) -> dict[str, Any]:
    """The MIME bundle of a widget without its metadata."""
    found = widget._repr_mimebundle_()
    return dict(found[0] if isinstance(found, tuple) else found or {})
