"""One page of rows as a static view: what HtmlInspector shows, and nothing that needs a widget library.

The view is `presence` over the rows of the page, one line each; its first line is the verdict over all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kitlib.inspector.judgement import judge
from kitlib.inspector.names import ShortNames
from kitlib.inspector.presence_rows import PresenceRows
from kitlib.inspector.presence_view import presence
from kitlib.inspector.presence_words import verdict
from kitlib.inspector.render.model import line
from kitlib.inspector.render.states import State
from kitlib.inspector.selection import Filter, select
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.transfer_queue import PartitionSnapshot, QueueSnapshot

ROWS_PER_PAGE = 50
PAGE_BYTES = 2 * PAGE_BUDGET  # 50 rows of 50 fields; it is replaced, never piled up in a notebook


@dataclass(frozen=True)
class Page:
    """A page of the rows that pass the filter. number counts from 0."""

    view: View
    number: int
    num_pages: int
    num_rows: int


def page(
    snapshot: QueueSnapshot, stage: str | None, config: Any, partition_id: str, pattern: str = "", number: int = 0
) -> Page:
    """The `number`-th page (the last one if there are fewer). pattern: part of a key, or a pattern with * and ?."""
    part = snapshot.partitions.get(partition_id)
    if part is None:
        return Page(presence(snapshot, stage, config, partition_id), 0, 1, 0)
    selection = select(snapshot, partition_id)
    keep = Filter(key=pattern if set(pattern) & set("*?") else f"*{pattern}*")
    rows = [i for i in selection.rows if keep.keeps(part.keys[i], part.tags[i])]
    num_pages = max(1, -(-len(rows) // ROWS_PER_PAGE))
    number = max(0, min(number, num_pages - 1))
    shown = rows[number * ROWS_PER_PAGE : (number + 1) * ROWS_PER_PAGE]
    of_page = replace(snapshot, partitions={partition_id: _only(part, shown)})
    title = f"rows {number * ROWS_PER_PAGE + 1:,} to {number * ROWS_PER_PAGE + len(shown):,} of {len(rows):,}"
    view = presence(of_page, stage, config, partition_id, collapse=False, title=title, budget=PAGE_BYTES)
    said = verdict(PresenceRows(selection, judge(stage, config, partition_id), ShortNames(part.keys)))
    headline = line((partition_id, State.STRONG), f"next: {stage}" if stage else "", said)
    return Page(View(replace(view.model, headline=headline, notes=()), PAGE_BYTES), number, num_pages, len(rows))


def _only(part: PartitionSnapshot, rows: list[int]) -> PartitionSnapshot:
    """The partition with only these rows; every field keeps its column."""
    at = np.array(rows, dtype=np.int64)
    keys, tags = tuple(part.keys[i] for i in rows), tuple(part.tags[i] for i in rows)
    part = replace(part, keys=keys, tags=tags, present=part.present[at], codes=part.codes[at])
    return replace(part, consumed={}, last_writes=())
