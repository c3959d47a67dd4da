"""The presence view: which fields are on which rows, and is it enough for the next stage?

verl 0.9.1 has no counterpart; what it judges by is verl's contract (kitlib.contract). Left out: values (never
touched), who wrote a field and when (needs an event log).

    train  next: compute_advantage  NOT READY: 1 of 128 rows lacks rm_scores (9c02_5_0) rows │ agent loop ..
    keys                          the first line answers, absence is louder than presence;
     126 │ ▪  ■  ■  ..                f3a1_0_0 f3a1_1_0 .. (+124)   rows that look the same are one line
       1 │ ▪  ■  ✗  ..                9c02_5_0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from kitlib.contract import FIELDS, STAGES
from kitlib.inspector.judgement import group_of, judge
from kitlib.inspector.markers import marker_table, stray_note
from kitlib.inspector.names import ShortNames
from kitlib.inspector.presence_rows import Kind, PresenceRows
from kitlib.inspector.presence_words import facts, narrowing, reasons, verdict
from kitlib.inspector.render.model import Cell, Column, Span, Table, ViewModel, cell, line, mark, marks_used
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.inspector.selection import Filter, NoSuchPartitionError, select
from kitlib.inspector.source import Source, snapshot_of
from kitlib.inspector.tags import describe_tags
from kitlib.inspector.view import PAGE_BUDGET, View, max_rows
from kitlib.keys import uid_of

if TYPE_CHECKING:
    from kitlib.transfer_queue import KVBatchMeta

NUM_EXPANDED = 8  # an odd kind of row with at most this many rows gets one line a row
NUM_KEYS = 3  # keys named on the line of a collapsed kind


def presence(
    source: Source,
    stage: str | None = None,
    config: Any = None,
    partition_id: str | None = None,
    batch: KVBatchMeta | None = None,
    *,
    title: str = "",
    uid: str | None = None,
    status: str | None = None,
    key: str | None = None,
    field: str | None = None,
    missing_only: bool = False,
    show_tags: bool = True,
    show_off: bool = False,
    collapse: bool = True,
    budget: int = PAGE_BUDGET,
) -> View:
    """Keys x fields of one partition, judged by what `stage` (the next stage) needs under `config`.

    source:   a QueueSnapshot or a queue. Reads keys, tags and presence; never a tensor.
    stage:    a name of kitlib.contract.STAGES, or None to judge nothing.
    config:   anything the contract can read; None means verl's defaults.
    partition_id: default train, and val for the stage validate.
    batch:    only the keys of this handle, in its partition.
    title:    words for the second line, such as "step 3, after compute_old_log_prob".
    uid, status, key, field, missing_only: show less (kitlib.inspector.selection.Filter); the first line still judges
        all.
    show_off: name the fields that no stage writes under this config.
    collapse: one line for rows with equal presence; False: one line a row.
    Raises UnknownStageError. A partition that does not exist (yet) is said in the first line.
    """
    snapshot = snapshot_of(source)
    default = "val" if stage == "validate" else "train"
    partition_id = (batch.partition_id if batch is not None else None) or partition_id or default
    judgement = judge(stage, config, partition_id)
    try:
        selection = select(snapshot, partition_id, batch)
    except NoSuchPartitionError as error:
        needed = judgement.reads or (stage and STAGES[stage].tags_read)
        said = (f"NOT READY: {error}", State.BAD) if needed else (str(error), State.DIM)
        return View(ViewModel(_headline(partition_id, stage, said)), budget)
    rows, keep = (
        PresenceRows(selection, judgement, ShortNames.of(snapshot)),
        Filter(uid, status, key, field, missing_only),
    )
    shown_rows, shown_fields = _shown(rows, keep)
    kinds = rows.kinds(shown_rows, shown_fields)
    tables = [_table(rows, kinds, shown_fields, show_tags, collapse, max_rows(budget))] if kinds else []
    hidden = (
        f"showing {len(shown_rows):,} of {count(len(rows.keys), 'row')} because of the filter {keep}"
        if str(keep)
        else ""
    )
    notes = [hidden, *reasons(rows, config, show_off), stray_note(selection, rows.names), rows.names.note()]
    model = ViewModel(
        headline=_headline(partition_id, stage, verdict(rows)),
        facts=facts(rows, title),
        tables=(*tables, *marker_table(selection, rows.names, keep)),
        legend=marks_used(tables),
        notes=(*narrowing(rows), *(cell(note, State.DIM) for note in notes if note)),
    )
    return View(model, budget)


def _headline(partition_id: str, stage: str | None, said: tuple[str, State]) -> Cell:
    return line((partition_id, State.STRONG), f"next: {stage}" if stage else "", said)


def _shown(rows: PresenceRows, keep: Filter) -> tuple[list[int], list[int]]:
    """Positions of the rows and fields that the filter lets through."""
    shown = [i for i, (key, tag) in enumerate(zip(rows.keys, rows.tags, strict=True)) if keep.keeps(key, tag)]
    fields = [j for j, name in enumerate(rows.fields) if keep.keeps_field(name)]
    if keep.missing_only:
        needed = [j for j in fields if rows.fields[j] in rows.judgement.reads] if rows.judgement.stage else fields
        shown = [i for i in shown if not rows.present[i, needed].all()]
        fields = [j for j in needed if shown and not rows.present[shown, j].all()]
    return shown, fields


def _table(
    rows: PresenceRows, kinds: list[Kind], fields: list[int], show_tags: bool, collapse: bool, limit: int
) -> Table:
    """At most `limit` lines: the largest kind first, or, with a line a row, last, so that odd rows are on the page."""
    names = [rows.fields[j] for j in fields]
    tail = [Column("keys", flow=True), *([Column("tags", flow=True)] if show_tags else [])]
    columns = (Column("rows", align="right"), *(_column(rows, name) for name in names), *tail)
    ordered = kinds if collapse else [*kinds[1:], kinds[0]]
    lines = (one for kind in ordered for one in _lines(rows, kind, collapse and _is_one_line(kind, kinds)))
    num_lines = sum(1 if collapse and _is_one_line(kind, kinds) else len(kind.positions) for kind in kinds)
    made = tuple(_row(rows, kind, names, show_tags) for kind in islice(lines, limit))
    return Table(columns, made, row_noun="lines", num_rows=num_lines)


def _column(rows: PresenceRows, name: str) -> Column:
    state = State.STRONG if name in rows.judgement.reads else State.PLAIN
    hover = f"{FIELDS[name].meaning}; {FIELDS[name].dtype} {FIELDS[name].shape}" if name in FIELDS else ""
    return Column(name, group_of(name), "center", mark=True, state=state, hover=hover)


def _is_one_line(kind: Kind, kinds: list[Kind]) -> bool:
    """False for a kind of few and odd rows: they get a line each."""
    return kind is kinds[0] or len(kind.positions) > NUM_EXPANDED


def _lines(rows: PresenceRows, kind: Kind, as_one: bool) -> Iterator[Kind]:
    """One line for the kind, or one a row."""
    if as_one:
        yield kind
    else:
        for i in sorted(kind.positions, key=lambda i: uid_of(rows.keys[i])):
            yield Kind((i,), kind.present, kind.is_padding)


def _row(rows: PresenceRows, kind: Kind, names: Sequence[str], show_tags: bool) -> tuple[Cell, ...]:
    judged = rows.judgement
    states = [
        judged.present(name) if is_there else judged.absent(name, kind.is_padding)
        for name, is_there in zip(names, kind.present, strict=True)
    ]
    tags = [cell(describe_tags([rows.tags[i] for i in kind.positions]), State.DIM)] if show_tags else []
    return (cell(f"{len(kind.positions):,}"), *map(mark, states), _keys(rows, kind), *tags)


def _keys(rows: PresenceRows, kind: Kind) -> Cell:
    shown = rows.names.spans([rows.keys[i] for i in kind.positions], NUM_KEYS)
    return Cell((*shown, *([Span("(padding)", State.WARN)] if kind.is_padding else [])))
