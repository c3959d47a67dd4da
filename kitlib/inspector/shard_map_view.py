"""The shard map: where each parameter lies, and how many bytes of it every rank holds.

verl 0.9.1: workers/engine/fsdp/transformer_impl.py builds the shards (FSDP2: Shard(0), the first dim is cut into
ceil(n / ranks) rows a rank, so the last rank may hold less, or nothing). The view takes plain rows, so that a worker
of any engine can fill it; kitlib's has `FSDPEngine.shards()`.

    28 parameters, 1.2 MB over 2 ranks: 612 KB to 618 KB a rank
    parameter                        shape      placement  rank 0  rank 1
    model.embed_tokens.weight        [70, 64]   Shard(0)   9.0 KB  9.0 KB
    model.layers.0-1 mlp.up_proj ..
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from kitlib.errors import KitError
from kitlib.inspector.render.model import Column, Table, ViewModel, cell, line
from kitlib.inspector.render.printable import name_of
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.inspector.shapes import size_text
from kitlib.inspector.view import PAGE_BUDGET, View

MAX_RANKS = 8  # columns of their own; with more, least and most are shown
_LAYER = re.compile(r"\.(\d+)\.")


class ShardMapError(KitError):
    """Rows that do not agree on the number of ranks."""


class Shard(NamedTuple):
    """One parameter: whole shape, placement as DTensor prints it, bytes on every rank."""

    name: str
    shape: tuple[int, ...]
    placement: str
    num_bytes: tuple[int, ...]


def shard_map(
    rows: Iterable[tuple[str, Sequence[int], str, Sequence[int] | int]],
    *,
    name: str | None = None,
    collapse: bool = True,
    title: str = "",
    budget: int = PAGE_BUDGET,
) -> View:
    """Parameters x ranks.

    rows:     (name, shape, placement, bytes per rank); one number means one rank.
    name:     a pattern with * and ?, to show less.
    collapse: layers that look alike share a line.
    Raises ShardMapError when parameters speak of different numbers of ranks.
    """
    shards = [_shard(*row) for row in rows]
    num_ranks = {len(shard.num_bytes) for shard in shards}
    if len(num_ranks) > 1:
        raise ShardMapError(f"the parameters speak of {sorted(num_ranks)} ranks: give every one the bytes of all ranks")
    ranks = num_ranks.pop() if num_ranks else 0
    shown = [shard for shard in shards if name is None or fnmatchcase(shard.name, name)]
    total = count(len(shards), "parameter")
    hidden = f"showing {len(shown)} of {total} because of the filter name={name}" if name is not None else ""
    table = _table(_merged(shown) if collapse else [(shard.name, 1, shard) for shard in shown], ranks)
    model = ViewModel(
        headline=line((_total(shards), State.STRONG), _verdict(shards, ranks)),
        facts=line(title, *((fact, State.DIM) for fact in _facts(shards))),
        tables=(table,) if table.rows else (),
        notes=(cell(hidden, State.DIM),) if hidden else (),
    )
    return View(model, budget)


def _shard(name: str, shape: Sequence[int], placement: str, num_bytes: Sequence[int] | int) -> Shard:
    per_rank = (num_bytes,) if isinstance(num_bytes, int) else tuple(num_bytes)
    return Shard(name, tuple(shape), str(placement), per_rank)


def _total(shards: Sequence[Shard]) -> str:
    elements = sum(math.prod(shard.shape) for shard in shards)
    return f"{count(len(shards), 'parameter')}, {elements:,} elements"


def _verdict(shards: Sequence[Shard], ranks: int) -> tuple[str, State]:
    if not shards:
        return "nothing to show", State.WARN
    per_rank = [sum(shard.num_bytes[rank] for shard in shards) for rank in range(ranks)]
    if ranks == 1:
        return f"{size_text(per_rank[0])} on one rank", State.GOOD
    low, high = min(per_rank), max(per_rank)
    said = f"{size_text(sum(per_rank))} over {ranks} ranks: {size_text(low)} to {size_text(high)} a rank"
    return said, State.GOOD if high <= 1.1 * low else State.WARN


def _facts(shards: Sequence[Shard]) -> list[str]:
    by_placement: dict[str, list[Shard]] = {}
    for shard in shards:
        by_placement.setdefault(shard.placement, []).append(shard)
    return [
        f"{placement}: {len(own)}, {size_text(sum(sum(shard.num_bytes) for shard in own))}"
        for placement, own in by_placement.items()
    ]


def _merged(shards: Sequence[Shard]) -> list[tuple[str, int, Shard]]:
    """(name, how many, one of them): the same parameter of several layers with the same look becomes one line."""
    alike: dict[tuple[object, ...], list[Shard]] = {}
    for shard in shards:
        look = (_LAYER.sub(".*.", shard.name, count=1), *shard[1:])
        alike.setdefault(look, []).append(shard)
    return [(_common_name(members), len(members), members[0]) for members in alike.values()]


def _common_name(members: Sequence[Shard]) -> str:
    """`model.layers.{0..27}.mlp.up_proj.weight`; layer numbers with gaps are listed."""
    if len(members) == 1:
        return members[0].name
    numbers = [int(match.group(1)) for shard in members if (match := _LAYER.search(shard.name))]
    gapless = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    label = f"{numbers[0]}..{numbers[-1]}" if gapless else ",".join(map(str, numbers))
    return _LAYER.sub(f".{{{label}}}.", members[0].name, count=1)


def _table(lines: Sequence[tuple[str, int, Shard]], ranks: int) -> Table:
    heads = [f"rank {rank}" for rank in range(ranks)] if ranks <= MAX_RANKS else ["least", "most"]
    columns = (
        Column("parameter"),
        Column("of", align="right", hover="parameters on this line"),
        Column("shape"),
        Column("placement"),
        *(Column(head, "bytes", "right") for head in heads),
    )
    rows = []
    for name, number, shard in lines:
        sizes = shard.num_bytes if ranks <= MAX_RANKS else (min(shard.num_bytes), max(shard.num_bytes))
        rows.append(
            (
                cell(name_of(name)),
                cell(number, State.PLAIN if number > 1 else State.DIM),
                cell(f"[{', '.join(map(str, shard.shape))}]"),
                cell(shard.placement, State.DIM if shard.placement.startswith("Shard") else State.PLAIN),
                *(cell(size_text(size), State.PLAIN if size else State.WARN) for size in sizes),
            )
        )
    return Table(columns, tuple(rows), row_noun="lines")
