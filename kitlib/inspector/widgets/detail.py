"""What a click on a cell tells: what lies there, who wrote it, and on request what it is.

verl 0.9.1 has no counterpart. Dtype, shape and tags come from a snapshot; the writer from the event log of a watched
queue (kitlib.transfer_queue.watch) or of a recording, else from the contract; values from a live queue or from a moment
whose values were recorded, one cell at a time.
"""

from __future__ import annotations

from typing import Any

import torch

from kitlib.contract import FIELDS
from kitlib.errors import KitError
from kitlib.inspector.history import seconds_text, signature
from kitlib.inspector.judgement import writers
from kitlib.inspector.render.printable import printable, value_of
from kitlib.inspector.render.wording import count, joined
from kitlib.inspector.shapes import describe_cells, size_text
from kitlib.inspector.tags import describe_tags
from kitlib.inspector.values import INSPECTOR
from kitlib.inspector.widgets.feed import Feed
from kitlib.transfer_queue import Event, PartitionSnapshot, acting_as

MAX_TEXT = 1500  # characters of a value
NUM_HEAD, NUM_TAIL = 24, 8  # numbers shown of a long tensor
TOKEN_FIELDS = ("prompts", "responses", "input_ids")

Facts = list[tuple[str, str]]  # (label, text), printable


def describe(feed: Feed, part: PartitionSnapshot | None, taken_at: float, key: str, field: str) -> Facts:
    """The facts of one cell at a moment (seconds since the epoch); field "" asks for the row alone."""
    if part is None or key not in part:
        return [("gone", "the row is no longer in the queue")]
    facts = [("tags", describe_tags([part.tag_of(key)])), ("fields", f"{len(part.fields_of(key))} on this row")]
    if (last := part.last_write(key)) is not None:
        facts.append(("last put", f"to this row by {signature(last)}, {_ago(taken_at - last.at)}"))
    if not field:
        return _shown(facts)
    cell = part.cell(key, field)
    looks = "absent" if cell is None else f"{describe_cells([cell])}, {size_text(cell.num_bytes)}"
    meaning = [("meaning", FIELDS[field].meaning)] if field in FIELDS else []
    return _shown([("holds", looks), ("written", _written(feed, part, taken_at, key, field)), *meaning, *facts])


def _written(feed: Feed, part: PartitionSnapshot, taken_at: float, key: str, field: str) -> str:
    """Who wrote the cell, when, and how often, as far as it is known."""
    writes: list[Event] = []
    for event in feed.events:
        if event.partition_id == part.partition_id and event.error is None and key in event.keys:
            writes = [] if event.verb == "kv_clear" else writes
            if event.is_put and field in event.fields and event.started_at <= taken_at:
                writes.append(event)
    if writes:
        again = f"; {count(len(writes), 'write')} since the key was put" if len(writes) > 1 else ""
        return f"by {signature(writes[-1])}, {_ago(taken_at - writes[-1].started_at)}{again}"
    by = joined(writers(field), "or")
    return f"by {by} (the contract; watch(queue) records who it was)" if by else "not in the contract"


def _ago(seconds: float) -> str:
    return f"{seconds_text(max(0.0, seconds))} before this picture"


def read_value(source: Any, partition_id: str, key: str, field: str, tokenizer: Any = None) -> Facts:
    """A few numbers or the text of one cell. source: a queue, or a recorded moment."""
    if not hasattr(source, "kv_batch_get"):
        return [("value", "a snapshot holds no values")]
    try:
        with acting_as(stage=INSPECTOR):
            data = source.kv_batch_get([key], partition_id, [field])
    except (KitError, ValueError, RuntimeError) as error:  # the row or its last field is gone, or the queue is closed
        return _shown([("value", f"cannot be read: {error}")])
    column = data.get(field, None)
    if column is None:
        return [("value", "absent")]
    if not isinstance(column, torch.Tensor):
        return _shown([("value", value_of(column.tolist()[0], MAX_TEXT))])
    row = column.unbind()[0]
    facts = [("values", _numbers(row))]
    if field in TOKEN_FIELDS and tokenizer is not None:
        facts.append(("text", value_of(tokenizer.decode(row.tolist()), MAX_TEXT)))
    return _shown(facts)


def _numbers(row: torch.Tensor) -> str:
    """`1 2 3 .. 9  (40 values)`: the first and last numbers of a tensor, and its mean where that says something."""
    flat = row.detach().reshape(-1)
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in flat.tolist()]
    if len(texts) > NUM_HEAD + NUM_TAIL:
        texts = [*texts[:NUM_HEAD], "..", *texts[-NUM_TAIL:]]
    more = f"  ({count(len(flat), 'value')})" if len(flat) > 1 else ""
    mean = f"  mean {flat.mean():.4g}" if flat.is_floating_point() and len(flat) > 1 else ""
    return " ".join(texts) + more + mean


def _shown(facts: Facts) -> Facts:
    return [(label, printable(text)) for label, text in facts]
