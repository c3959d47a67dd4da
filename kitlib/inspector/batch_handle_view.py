"""The batch handle: what do I hold, and what does the queue hold?

verl 0.9.1 hands a KVBatchMeta (TransferQueue 0.1.11, metadata.py) from stage to stage: keys and tags, no tensor. It
is a copy made when it was handed out, so it goes stale: rows are cleared, tags move on, fields are added.

    KVBatchMeta  train  6 keys  STALE: 1 of 6 keys is gone (u9_2_0)
    you carry 612 bytes of metadata; the queue holds 19 fields, 1.3 MB for these keys
    key        tags in hand               in the queue
    f3a1_0_0   success  len 11+20  v2     19 fields
    u9_2_0     success  len 11+17  v1     GONE
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.printable import value_of
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.shapes import num_bytes, size_text
from kitlib.inspector.source import Source, snapshot_of
from kitlib.inspector.tags import describe_tags
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.transfer_queue import KVBatchMeta, PartitionSnapshot, QueueSnapshot

NUM_LINES = 12  # a longer handle has rows in the same condition on one line
NUM_KEYS = 3


@dataclass(frozen=True)
class _Found:
    """One key of the handle. fields: how many the queue has for it, None if the key is gone. elsewhere: other
    partitions."""

    key: str
    tag: dict[str, Any]
    fields: tuple[str, ...] | None
    elsewhere: tuple[str, ...]
    changed: tuple[str, ...]  # names of tags that are different in the queue by now

    @property
    def condition(self) -> tuple[Any, ...]:
        return (self.fields, self.elsewhere, self.changed)


def batch_handle(source: Source, batch: KVBatchMeta, *, title: str = "", budget: int = PAGE_BUDGET) -> View:
    """One KVBatchMeta against the queue: keys that are gone or elsewhere, tags that moved on, what a get by it would
    fetch.

    source: a QueueSnapshot or a queue. Reads keys, tags and presence; never a tensor.
    """
    snapshot = snapshot_of(source)
    partition = snapshot.partitions.get(batch.partition_id or "")
    found = [_find(snapshot, partition, key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True)]
    names = ShortNames([*batch.keys, *(key for part in snapshot.partitions.values() for key in part.keys)])
    where = batch.partition_id or "no partition"
    return View(
        ViewModel(
            headline=line(
                ("KVBatchMeta", State.STRONG), where, count(len(batch), "key"), _verdict(found, batch, names)
            ),
            facts=line(title, (_carried(batch, partition, found), State.DIM)),
            tables=(_table(found, names),) if found else (),
            notes=tuple(cell(note, State.DIM) for note in [_rest(batch), _fetch(batch, found), names.note()] if note),
        ),
        budget,
    )


def _find(snapshot: QueueSnapshot, partition: PartitionSnapshot | None, key: str, tag: dict[str, Any]) -> _Found:
    elsewhere = tuple(name for name, part in snapshot.partitions.items() if part is not partition and key in part)
    if partition is None or key not in partition:
        return _Found(key, tag, None, elsewhere, ())
    now = partition.tag_of(key)
    changed = tuple(sorted(name for name in {*tag, *now} if value_of(tag.get(name)) != value_of(now.get(name))))
    return _Found(key, tag, partition.fields_of(key), elsewhere, changed)


def _verdict(found: list[_Found], batch: KVBatchMeta, names: ShortNames) -> tuple[str, State]:
    gone = [one for one in found if one.fields is None]
    moved = [one for one in gone if one.elsewhere]
    changed = [one for one in found if one.changed]
    keys = listed([names.key(one.key) for one in moved or gone], 3)
    if moved:
        others = ", ".join(sorted({name for one in moved for name in one.elsewhere}))
        where = f"{count(len(moved), 'key')} not in {batch.partition_id} but in {others}"
        return f"WRONG PARTITION: {where} ({keys})", State.BAD
    if gone:
        verb = "is" if len(gone) == 1 else "are"
        return f"STALE: {len(gone)} of {count(len(found), 'key')} {verb} gone ({keys})", State.BAD
    if changed:
        tags = listed(sorted({name for one in changed for name in one.changed}), 4)
        return f"OLD TAGS: the queue has other tags on {count(len(changed), 'key')}: {tags}", State.WARN
    return ("all keys in the queue, tags as in hand", State.GOOD) if found else ("empty", State.WARN)


def _carried(batch: KVBatchMeta, partition: PartitionSnapshot | None, found: list[_Found]) -> str:
    carried = size_text(len(pickle.dumps(batch)))
    there = {one.key for one in found if one.fields is not None}
    if partition is None or not there:
        return f"you carry {carried} of metadata; the queue holds nothing for it"
    rows = [i for i, key in enumerate(partition.keys) if key in there]
    fields = {field for one in found for field in one.fields or ()}
    held = f"{count(len(fields), 'field')}, {size_text(num_bytes(partition, rows))}"
    return f"you carry {carried} of metadata; the queue holds {held} for these keys"


def _table(found: list[_Found], names: ShortNames) -> Table:
    alike: dict[tuple[Any, ...], list[_Found]] = {}
    for number, one in enumerate(found):
        alike.setdefault((number,) if len(found) <= NUM_LINES else one.condition, []).append(one)
    lines = list(alike.values())
    if len(found) > NUM_LINES:
        lines.sort(key=lambda members: (members[0].fields is not None, not members[0].changed))
    tail = (Column("tags in hand", flow=True), Column("in the queue", flow=True))
    columns = (Column("keys", align="right"), Column("which"), *tail)
    return Table(columns, tuple(_row(members, names) for members in lines), num_fixed=2, row_noun="lines")


def _row(members: list[_Found], names: ShortNames) -> tuple[Cell, ...]:
    keys = names.spans([one.key for one in members], NUM_KEYS)
    tags = describe_tags([one.tag for one in members])
    return (cell(len(members)), Cell(tuple(keys)), cell(tags, State.DIM), _whereabouts(members[0]))


def _whereabouts(one: _Found) -> Cell:
    others = ", ".join(one.elsewhere)
    if one.fields is None:
        return cell(f"not here but in {others}" if others else "GONE", State.BAD)
    there = (count(len(one.fields), "field"), State.PLAIN) if one.fields else ("no field", State.BAD)
    changed = f"other {', '.join(one.changed)}" if one.changed else ""
    return line(there, (changed, State.WARN), (f"also in {others}" if others else "", State.WARN))


def _rest(batch: KVBatchMeta) -> str:
    extra = ", ".join(f"{name}: {value_of(value)}" for name, value in (batch.extra_info or {}).items())
    fields = "None" if batch.fields is None else f"{len(batch.fields)} names"
    return f"fields={fields}   extra_info={{{extra}}}"


def _fetch(batch: KVBatchMeta, found: list[_Found]) -> str:
    """What kv_batch_get_by_meta would bring: the fields that all rows have, cut to the handle's list."""
    rows = [set(one.fields) for one in found if one.fields is not None]
    if not rows:
        return ""
    common, some = set.intersection(*rows), set.union(*rows)
    listed_ = some if batch.fields is None else set(batch.fields)
    partial = sorted((some - common) & listed_)
    text = f"kv_batch_get_by_meta would fetch {count(len(common & listed_), 'field')}"
    if hidden := sorted(common - listed_):
        text += f"; the queue has {len(hidden)} more that the handle does not list: {listed(hidden)}"
    return text + (f"; left out because a row lacks it: {listed(partial)}" if partial else "")
