"""Row to rank: which key went to which rank, mini-batch and micro-batch, how many tokens each has, how much is padding.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._balance_batch orders the batch so that rank r takes the r-th of
dp_size equal slices; workers/engine_workers.py cuts a slice into mini-batches; utils/seqlen_balancing.py cuts those
into micro-batches. Here micro-batches are cut as kitlib's actor does: longest rows first, either a number of rows each
or as many as fit into max_token_len with padding counted. Left out: shuffled epochs (`actor.shuffle`), and ranks that
halve a micro-batch because another rank has more.

    train  128 rows over 2 ranks: tokens 3,071 to 3,102 (1% apart)
    rank  rows  tokens  load  padding rows
    rank  mini  micro  rows  tokens  width  wasted  keys

The load of a row of s tokens is 24576 s + s^2 (calculate_workload): what balancing makes equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from kitlib.inspector.cuts import Cut, Micro, Row, UnevenBatchError, micro_batches, slices
from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Span, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.transfer_queue import KVBatchMeta

NUM_KEYS = 4


def row_to_rank(
    batch: KVBatchMeta,
    cut: Cut | None = None,
    config: Any = None,
    *,
    dp_size: int = 1,
    key: str | None = None,
    title: str = "",
    budget: int = PAGE_BUDGET,
) -> View:
    """Where every row of a balanced batch goes in update_actor. Reads the handle's keys and tags only.

    cut:    numbers given by hand; by default those that `config` sets, over `dp_size` ranks.
    key:    a pattern with * and ?; only micro-batches that hold such a key are listed, and it is named in them.
    Raises UnevenBatchError if rows do not divide (call balance_batch before, it adds padding rows), and for a row
    without the tag seq_len.
    """
    cut = cut or Cut.of(config, dp_size)
    rows = [_row(name, tag) for name, tag in zip(batch.keys, batch.tags, strict=True)]
    micros = list(micro_batches(rows, cut))
    names = ShortNames(batch.keys)
    shown = [micro for micro in micros if key is None or any(fnmatchcase(row.key, key) for row in micro.rows)]
    total = count(len(micros), "micro-batch", "micro-batches")
    hidden = "" if key is None else f"showing {len(shown)} of {total} because of the filter key={key}"
    model = ViewModel(
        headline=line((batch.partition_id or "no partition", State.STRONG), _verdict(rows, cut)),
        facts=line(title, *((fact, State.DIM) for fact in _facts(rows, micros, cut))),
        tables=tuple(table for table in (_ranks(rows, micros, cut), _micros(shown, names, key)) if table.rows),
        notes=tuple(cell(note, State.DIM) for note in (hidden, names.note()) if note),
    )
    return View(model, budget)


def _row(key: str, tag: dict[str, Any]) -> Row:
    if not isinstance(tag.get("seq_len"), int):
        raise UnevenBatchError(f"{key} has no tag seq_len in this handle (it has {sorted(tag)}): sample gives it")
    return Row(key, tag["seq_len"], bool(tag.get("is_padding")))


# -------------------------------------------------------------------------------------------------------------- words


def _apart(values: Sequence[int]) -> float:
    return (max(values) - min(values)) / max(values) if max(values) else 0.0


def _verdict(rows: Sequence[Row], cut: Cut) -> tuple[str, State]:
    tokens = [sum(row.seq_len for row in own) for own in slices(rows, cut.dp_size)]
    said = f"{count(len(rows), 'row')} over {count(cut.dp_size, 'rank')}"
    if cut.dp_size == 1:
        return f"{said}: {tokens[0]:,} tokens", State.GOOD
    apart = _apart(tokens)
    return (
        f"{said}: {min(tokens):,} to {max(tokens):,} tokens a rank ({apart:.0%} apart)",
        State.GOOD if apart < 0.1 else State.WARN,
    )


def _facts(rows: Sequence[Row], micros: Sequence[Micro], cut: Cut) -> list[str]:
    minis = len({micro.mini for micro in micros})
    size = "" if cut.mini_batch_size is None else f" of {cut.mini_batch_size} rows"
    waste = 1 - sum(m.tokens for m in micros) / sum(m.width * len(m.rows) for m in micros)
    return [
        f"{count(minis, 'mini-batch', 'mini-batches')}{size}",
        count(len(micros), "micro-batch", "micro-batches"),
        f"{waste:.0%} of the padded tokens are padding",
        *([f"{num_pads} padding rows"] if (num_pads := sum(row.is_padding for row in rows)) else []),
    ]


def _ranks(rows: Sequence[Row], micros: Sequence[Micro], cut: Cut) -> Table:
    parts = slices(rows, cut.dp_size)
    loads = [sum(row.load for row in own) for own in parts]
    mean = sum(loads) / len(loads)
    columns = (
        Column("rank", align="right"),
        *(Column(head, align="right") for head in ("rows", "padding rows", "tokens", "shortest", "longest")),
        Column("load", align="right", hover="24576 s + s^2 of its rows, against the mean of the ranks"),
        Column("micro-batches", align="right"),
    )
    lines = []
    for rank, own in enumerate(parts):
        lens, num_pads = [row.seq_len for row in own], sum(row.is_padding for row in own)
        lines.append(
            (
                cell(rank, State.STRONG),
                cell(f"{len(own):,}"),
                cell(num_pads or "-", State.WARN if num_pads else State.DIM),
                cell(f"{sum(lens):,}"),
                cell(min(lens)),
                cell(max(lens)),
                cell(f"{loads[rank] / mean:.1%}"),
                cell(sum(micro.rank == rank for micro in micros)),
            )
        )
    return Table(columns, tuple(lines), row_noun="ranks")


def _micros(shown: Sequence[Micro], names: ShortNames, key: str | None) -> Table:
    heads = ("rank", "mini", "micro", "rows", "tokens", "width", "wasted")
    columns = (*(Column(head, align="right") for head in heads), Column("keys, longest first", flow=True))
    lines = tuple(
        (
            cell(micro.rank),
            cell(micro.mini),
            cell(micro.micro),
            cell(f"{len(micro.rows):,}"),
            cell(f"{micro.tokens:,}"),
            cell(micro.width),
            cell(f"{micro.wasted:.0%}", State.WARN if micro.wasted > 0.3 else State.PLAIN),
            _keys(micro, names, key),
        )
        for micro in shown
    )
    return Table(columns, lines, num_fixed=3, row_noun="micro-batches")


def _keys(micro: Micro, names: ShortNames, key: str | None) -> Cell:
    rows = [row for row in micro.rows if key is None or fnmatchcase(row.key, key)]
    spans = names.spans([row.key for row in rows], NUM_KEYS)
    num_pads = sum(row.is_padding for row in micro.rows)
    return Cell((*spans, *([Span(f"({num_pads} padding)", State.WARN)] if num_pads else [])))
