"""Two rows of the queue beside each other: which tags and fields differ, and how.

For a padding row beside the real row that it was made from, this is the list of its marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kitlib.contract import FIELDS, TAGS
from kitlib.inspector import View
from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.transfer_queue import QueueProtocol

MAX_TEXT = 46


def two_rows(tq: QueueProtocol, one: str, other: str, partition_id: str = "train") -> View:
    """Tags first, then fields in the order of the contract; what is equal is named below. Reads both rows."""
    names = ShortNames([one, other])
    tags = tq.kv_list(partition_id)[partition_id]
    rows = [_row(tq, key, partition_id) for key in (one, other)]
    lines = [*_lines("tag", tags[one], tags[other], list(TAGS)), *_lines("field", rows[0], rows[1], list(FIELDS))]
    same = sorted(name for name in rows[0] if name in rows[1] and _equal(rows[0][name], rows[1][name]))
    columns = (Column(""), Column("name"), Column(names.key(one)), Column(names.key(other)))
    num_tags = sum(kind == "tag" for kind, *_ in lines)
    verdict = f"{count(num_tags, 'tag')} and {count(len(lines) - num_tags, 'field')} differ"
    cells = tuple((cell(kind, State.DIM), cell(name, State.STRONG), _say(a), _say(b)) for kind, name, a, b in lines)
    notes = (cell(f"equal: {', '.join(same)}", State.DIM), cell(names.note(), State.DIM))
    return View(ViewModel(line(verdict), tables=(Table(columns, cells, num_fixed=2),), notes=notes))


_ABSENT = object()


def _row(tq: QueueProtocol, key: str, partition_id: str) -> dict[str, Any]:
    row = tq.kv_batch_get([key], partition_id)[0]
    return {str(name): row[name] for name in row.keys()}


def _lines(kind: str, one: dict[str, Any], other: dict[str, Any], order: list[str]) -> Iterator[tuple[Any, ...]]:
    known = [name for name in order if name in one or name in other]
    strange = [name for name in {**one, **other} if name not in order]
    for name in [*known, *strange]:
        pair = one.get(name, _ABSENT), other.get(name, _ABSENT)
        if not _equal(*pair):
            yield kind, name, *pair


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


def _say(value: Any) -> Cell:
    if value is _ABSENT:
        return cell("-", State.DIM)
    if isinstance(value, torch.Tensor):
        return cell(_tensor(value))
    text = str(value)
    return cell(text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..", hover=text if len(text) > MAX_TEXT else "")


def _tensor(value: torch.Tensor) -> str:
    """`2 x 127`, `0 .. 127`, `[4, 8, 3]`, `[4, 8, 3, ..] (15)`."""
    flat = [round(number, 3) for number in value.flatten().tolist()]
    if len(flat) > 6 and len(set(flat)) == 1:
        return f"{flat[0]:g}, {len(flat)} times"
    if len(flat) > 6 and flat == list(range(len(flat))):
        return f"0 .. {len(flat) - 1}"
    shown = ", ".join(f"{number:g}" for number in flat[:6])
    return f"[{shown}]" if len(flat) <= 6 else f"[{shown}, ..] ({len(flat)} numbers)"
