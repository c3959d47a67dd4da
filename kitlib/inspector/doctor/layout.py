"""Layout of columns: jagged, dense, object, and which dim is ragged.

verl 0.9.1 reads a column by looking at one field alone, so a column that comes back in another layout takes the wrong
branch. TransferQueue 0.1.11: tensors of one dim or more come back jagged, scalars as a plain vector, mixed rows as a
list of objects; three-dimensional position ids of equal length come back ragged in the coordinate dim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kitlib.contract import FIELDS
from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.presence import wanted
from kitlib.inspector.doctor.scene import Row, keys_of, last_outputs, whole
from kitlib.inspector.doctor.situation import Situation
from kitlib.inspector.doctor.sizes import RESPONSE_FIELDS
from kitlib.inspector.doctor.values import cell_of
from kitlib.transfer_queue import Cell


def dense_beside_jagged(s: Situation) -> Iterator[Finding]:
    """dense_beside_jagged: one token column comes back dense because all its rows have one length."""
    columns = s.observed.columns.get(s.partition_id, {})
    layouts = {f: str(c.get("layout")) for f, c in columns.items() if FIELDS.get(f) and FIELDS[f].layout == "jagged"}
    dense = [field for field, layout in layouts.items() if layout == "dense"]
    if not dense or "jagged" not in layouts.values():
        return
    rows = [row for row in s.rows if any(s.scene.partition.has(row.key, field) for field in dense)]
    shape = columns[dense[0]].get("shape") or [len(rows), 0]
    jagged = [field for field, layout in layouts.items() if layout == "jagged"]
    yield Finding(
        "dense_beside_jagged",
        "error",
        f"{few(dense)} {verb(len(dense), 'comes', 'come')} back dense and {few(jagged)} jagged, because all rows of "
        f"{dense[0]} happen to have length {shape[-1]}; code that looks at one field alone takes the wrong branch.",
        "Use TransferQueue 0.1.7 or later, which hands every token column back jagged.",
        s.partition_id,
        keys_of(rows),
        tuple(dense),
        {"length": shape[-1], "prompt_len": shape[-1], "rows": len(rows)},
    )


def dense_write(s: Situation) -> Iterator[Finding]:
    """dense_write: a put brought a padded, dense column where the rows have lengths of their own."""
    for put in s.observed.writes:
        partition_id = put.get("partition_id") or put.get("partition") or s.partition_id
        keys = list(put.get("keys") or ())
        dense = [
            field for field, column in _columns_of(put).items() if _is_padded(s, partition_id, keys, field, column)
        ]
        if dense:
            yield Finding(
                "dense_write",
                "error",
                f"A put of {some(len(keys), 'row')} wrote {few(dense)} as one dense block, although the rows have "
                "lengths of their own: the padding is stored as if it were tokens.",
                "Put a jagged column (kitlib.transfer_queue.jagged, verl's response_to_nested), or cut the rows first.",
                partition_id,
                tuple(keys),
                tuple(dense),
                {"rows": len(keys), "width": (_columns_of(put)[dense[0]].get("shape") or [None])[-1]},
            )


def ragged_dim(s: Situation) -> Iterator[Finding]:
    """ragged_dim: a column with coordinates comes back ragged in the coordinates instead of the tokens."""
    columns = s.observed.columns.get(s.partition_id, {})
    for field, column in columns.items():
        cells = _cells(s, s.rows, field)
        expected = max((len(cell.shape) for cell in cells.values()), default=0)  # batch dim first, tokens last
        seen = column.get("ragged_dim")
        if expected < 2 or seen is None or seen == expected:
            continue
        length = next(iter(cells.values())).shape[-1]
        yield Finding(
            "ragged_dim",
            "error",
            f"{field} has {next(iter(cells.values())).shape[0]} coordinates a token, and all rows have length "
            f"{length}: the column comes back ragged in dim {seen} (the coordinates) instead of dim {expected} (the "
            "tokens).",
            "Build the column again with the token dim as the ragged one before the forward pass.",
            s.partition_id,
            tuple(cells),
            (field,),
            {"ragged_dim": seen, "expected_ragged_dim": expected, "rows": len(cells), "length": length},
        )


def one_element_rows(s: Situation) -> Iterator[Finding]:
    """one_element_rows: a number a row, written as a tensor of one element; it comes back jagged."""
    for field in s.scene.partition.fields:
        if field in FIELDS and FIELDS[field].layout != "object":
            continue
        cells = _cells(s, s.rows, field)
        rows = [key for key, cell in cells.items() if cell.shape == (1,) and cell.layout == "row"]
        if not rows or len(rows) < len(cells) or not _is_jagged(s, field, rows):
            continue
        yield Finding(
            "one_element_rows",
            "warning",
            f"{field} has one element in a tensor a row and comes back jagged; a scalar a row comes back as a plain "
            "vector, which is what code that adds or averages it expects.",
            "Write a 0-dim tensor (torch.tensor(3), not torch.tensor([3])) for each row.",
            s.partition_id,
            tuple(rows),
            (field,),
            {"elements": 1, "rows": len(rows)},
        )


def mixed_types(s: Situation) -> Iterator[Finding]:
    """mixed_types (extra_fields: reads acc): a column of tensors and objects, of dicts and None, or of two dtypes."""
    for field in s.scene.partition.fields:
        kinds = _kinds_of_rows(s, field)
        usual = _usual(field, list(kinds.values()))
        others = [key for key, kind in kinds.items() if kind != usual]
        if usual is None or not others or not _matters(field, usual, {kinds[key] for key in others}):
            continue
        yield _mixed(s, field, usual, others, kinds)


def _mixed(s: Situation, field: str, usual: str, others: list[str], kinds: Mapping[str, str]) -> Finding:
    is_tensor = not usual.startswith("object")
    fit = len(kinds) - len(others)
    numbers: dict[str, Any] = {"tensor_rows" if is_tensor else f"{usual.removeprefix('object ')}_rows": fit}
    numbers |= {"other_rows": len(others)} | (_acc_of(s, others) if field == "extra_fields" else {})
    needed = wanted(s).get(field, ("", "warning"))[1] == "error" or (is_tensor and field in FIELDS)
    effect = (
        "the column comes back as a list of objects instead of a tensor, and "
        + ("the stage that reads it stops" if field in FIELDS else "code that reads it as a tensor stops")
        if is_tensor
        else "readers that expect one type skip or miscount these rows"
    )
    counted = f" (acc reads {numbers['acc']} where {numbers['acc_with_the_row']} is right)" if "acc" in numbers else ""
    return Finding(
        "mixed_types",
        "error" if needed else "warning",
        f"{field} is {_said(usual)} on {some(fit, 'row')} and {_said(kinds[others[0]])} on {few(others)}: "
        f"{effect}{counted}.",
        "Leave the field out on these rows, or write a tensor of the same kind."
        if is_tensor
        else "Write an empty dict instead of None.",
        s.partition_id,
        tuple(others),
        (field,),
        numbers,
    )


def _columns_of(put: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """{field: description} of a put, under whichever name it has."""
    for name in ("columns", "fields", "layouts", "layout"):
        found = put.get(name)
        if isinstance(found, Mapping):
            return {f: c if isinstance(c, Mapping) else {"layout": c} for f, c in found.items()}
    return {}


def _is_padded(s: Situation, partition_id: str, keys: Sequence[str], field: str, column: Mapping[str, Any]) -> bool:
    """True if a dense column cannot be right: its rows have, or should have, lengths of their own."""
    known = FIELDS.get(field)
    if column.get("layout") != "dense" or known is None or known.layout != "jagged":
        return False
    if not any(letter in known.shape for letter in "PRS"):
        return False
    tag = {"P": "prompt_len", "R": "response_len"}.get(next(c for c in known.shape if c in "PRS"), "seq_len")
    partition = s.snapshot.partitions.get(partition_id)
    if partition is None:
        return False
    said = [whole(partition.tag_of(key).get(tag)) for key in keys if key in partition]
    width = (column.get("shape") or [None])[-1]
    return len(set(said)) > 1 or any(n is not None and width is not None and n != width for n in said)


def _is_jagged(s: Situation, field: str, keys: Sequence[str]) -> bool:
    """What a read says, where one was made; the picture of the package cannot tell a scalar from one element."""
    seen = s.observed.columns.get(s.partition_id, {}).get(field, {}).get("layout")
    if seen is not None:
        return seen == "jagged"
    values = s.values.read(s.partition_id, field, keys[:1])
    if values:
        return np.ndim(values[keys[0]]) == 1
    return not s.is_coarse


def _cells(s: Situation, rows: Sequence[Row], field: str) -> dict[str, Cell]:
    """{key: description} of the rows that have the field."""
    partition = s.scene.partition
    column = partition.column_of.get(field)
    if column is None:
        return {}
    codes = partition.codes[:, column]
    return {row.key: partition.cells[code] for row in rows if (code := codes[row.position])}


def _kinds_of_rows(s: Situation, field: str) -> dict[str, str]:
    """{key: kind of value}; {} for a column that is surely of one kind. A coarse picture is made sure of by values."""
    if s.is_coarse and field in (*RESPONSE_FIELDS, "extra_fields"):
        values = s.read(field, s.readable_rows)
        return {key: _kind(cell_of(value)) for key, value in values.items()}
    if len(_kinds_of(s, field)) < 2:
        return {}
    return {key: _kind(cell) for key, cell in _cells(s, s.rows, field).items()}


def _kinds_of(s: Situation, field: str) -> set[str]:
    """The kinds of value in a column, of all rows of the partition: cheap, since rows share descriptions."""
    partition = s.scene.partition
    counts = np.bincount(partition.codes[:, partition.column_of[field]])  # codes are small numbers
    return {_kind(partition.cells[code]) for code in np.nonzero(counts)[0].tolist() if code}


def _kind(cell: Cell) -> str:
    """`int64 dim 1` of a tensor, `object dict` of anything else."""
    return f"object {cell.dtype}" if cell.layout == "object" else f"{cell.dtype} dim {len(cell.shape)}"


def _said(kind: str) -> str:
    """`float32 with 1 dim`, `dict`, `None`: a kind in a sentence."""
    kind = kind.removeprefix("object ").replace("NoneType", "None")
    dtype, _, dims = kind.partition(" dim ")
    return f"{dtype} with {some(int(dims), 'dim')}" if dims else kind


def _usual(field: str, kinds: Sequence[str]) -> str | None:
    """The kind that the column should have: the contract's, else that of most rows."""
    if not kinds:
        return None
    known = FIELDS.get(field)
    if known is not None and known.layout == "object" and f"object {known.dtype}" in kinds:
        return f"object {known.dtype}"
    tensors = [kind for kind in kinds if not kind.startswith("object")]
    return Counter(tensors or kinds).most_common(1)[0][0]


def _matters(field: str, usual: str, others: set[str]) -> bool:
    """Any mix with tensors matters; of objects, only where the contract says dict."""
    if not usual.startswith("object"):
        return True
    known = FIELDS.get(field)
    return known is not None and known.dtype == "dict" and usual == "object dict" and "object object" not in others


def _acc_of(s: Situation, others: Sequence[str]) -> dict[str, float]:
    """acc as validation counts it (rows without a dict count as 0) and as it would be with the reward instead."""
    rows = [row for row in last_outputs(s.real_rows) if row.key in {r.key for r in s.readable_rows}]
    extra, scores = s.read("extra_fields", rows), s.read("rm_scores", rows)
    known = [_acc(extra.get(row.key)) for row in rows]
    if not any(acc is not None for acc in known) or len(scores) < len(rows):
        return {}
    right = [float(np.sum(scores[row.key])) if acc is None else acc for row, acc in zip(rows, known, strict=True)]
    return {
        "acc": round(sum(acc or 0.0 for acc in known) / len(rows), 4),
        "acc_with_the_row": round(sum(right) / len(rows), 4),
    }


def _acc(extra_fields: Any) -> float | None:
    info = extra_fields.get("reward_extra_info") if isinstance(extra_fields, dict) else None
    value = info.get("acc") if isinstance(info, dict) else None
    return float(value) if isinstance(value, int | float) else None
