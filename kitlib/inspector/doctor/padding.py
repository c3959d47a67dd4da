"""Padding rows: made so that the batch divides, and meant to change nothing.

verl 0.9.1: trainer/ppo/padding_utils.py. A padding row has a key and a uid of its own (pad..), the tag is_padding, a
sequence of 128 tokens and a mask of 0. Metrics drop rows by the tag; sequence-level numbers of the rollout correction
do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kitlib.inspector.doctor.finding import Finding, few, some, verb
from kitlib.inspector.doctor.scene import Row, keys_of, whole
from kitlib.inspector.doctor.situation import Situation
from kitlib.inspector.doctor.sizes import lengths
from kitlib.inspector.doctor.values import is_array

PADDING_LENGTH = 128  # tokens; shorter rows break sequence parallelism
WORTH_SAYING = 0.05  # nats of log-ppl by which a metric is off


def padding_tag_missing(s: Situation) -> Iterator[Finding]:
    """padding_tag_missing: a row that was made as padding, without the tag that says so."""
    bare = [row for row in s.padding_rows if not row.tag.get("is_padding")]
    if bare:
        yield Finding(
            "padding_tag_missing",
            "error",
            f"{few(keys_of(bare))} {verb(len(bare), 'is a padding row', 'are padding rows')} without the tag "
            f"is_padding: metrics count {verb(len(bare), 'it as a real answer', 'them as real answers')} of length 1 "
            "with reward 0.",
            "Put the tag is_padding=True on these keys (kv_batch_put with tags only keeps their fields).",
            s.partition_id,
            keys_of(bare),
            numbers={"rows": len(bare), "padding_rows": len(s.padding_rows)},
            view="batch_handle",
        )


def padding_mask_one(s: Situation) -> Iterator[Finding]:
    """padding_mask_one (reads response_mask, loss_mask of padding rows): a padding row that trains."""
    fields: list[str] = []
    bad: dict[str, Row] = {}
    for field in ("response_mask", "loss_mask"):
        masks = s.read(field, s.padding_rows)
        ones = [row for row in s.padding_rows if row.key in masks and np.any(masks[row.key])]
        if ones:
            fields.append(field)
            bad |= {row.key: row for row in ones}
    if bad:
        yield Finding(
            "padding_mask_one",
            "error",
            f"{few(fields)} of {few(list(bad))} {verb(len(fields), 'is', 'are')} not 0: the padding takes part in the "
            "loss and in its denominator.",
            "Write a mask of zeros on padding rows.",
            s.partition_id,
            tuple(bad),
            tuple(fields),
            {"rows": len(bad), "padding_rows": len(s.padding_rows)},
            view="tokens",
        )


def padding_real_uid(s: Situation) -> Iterator[Finding]:
    """padding_real_uid (reads uid of padding rows): padding that joins a real group."""
    real = {row.uid for row in s.real_rows}
    column = s.read("uid", s.padding_rows)
    bad = [row for row in s.padding_rows if str(column.get(row.key)) in real or row.uid in real]
    if bad:
        joined = sorted({str(column.get(row.key, row.uid)) for row in bad})
        yield Finding(
            "padding_real_uid",
            "error",
            f"The padding {verb(len(bad), 'row', 'rows')} {few(keys_of(bad))} {verb(len(bad), 'carries', 'carry')} the "
            f"uid of a real group ({few(joined)}): its reward of 0 shifts mean and spread of that group.",
            "Give padding rows a uid of their own (pad + uuid4().hex).",
            s.partition_id,
            keys_of(bad),
            ("uid",),
            {"rows": len(bad), "groups": len(joined)},
            view="group_board",
        )


def padding_too_short(s: Situation) -> Iterator[Finding]:
    """padding_too_short: a padding row with fewer than 128 tokens."""
    own = lengths(s, s.padding_rows, "input_ids").tolist()
    said = [whole(row.tag.get("seq_len")) for row in s.padding_rows]
    short = {
        row.key: length if 0 <= length < PADDING_LENGTH else (tag or 0)
        for row, length, tag in zip(s.padding_rows, own, said, strict=True)
        if 0 <= length < PADDING_LENGTH or (length < 0 and tag is not None and tag < PADDING_LENGTH)
    }
    if short:
        shortest = min(short.values())
        yield Finding(
            "padding_too_short",
            "error",
            f"{few(list(short))} {verb(len(short), 'has', 'have')} {some(shortest, 'token')}; padding rows have "
            f"{PADDING_LENGTH}, so that every rank of a sequence-parallel group gets a part of them.",
            f"Make padding rows of {PADDING_LENGTH} tokens.",
            s.partition_id,
            tuple(short),
            ("input_ids",),
            {"seq_len": shortest, "length": shortest, "expected": PADDING_LENGTH, "rows": len(short)},
        )


def padding_dilutes_metrics(s: Situation) -> Iterator[Finding]:
    """padding_dilutes_metrics (reads both log-probs and the mask): means over sequences that padding pulls to 0."""
    if s.stage != "compute_advantage" or not s.padding_rows or not s.choices.corrects_rollout:
        return
    rows = s.readable_rows
    gaps = _gaps(s, rows)
    if len(gaps) < len(rows) or not gaps:
        return
    num_rows = len(rows) + len(s.padding_rows)
    diff = float(np.mean([abs(rollout - actor) for rollout, actor in gaps]))
    ppl = float(np.mean([np.exp(-actor) for _, actor in gaps]))
    share = len(rows) / num_rows
    diluted, diluted_ppl = diff * share, ppl * share + (1 - share)
    if diff - diluted < WORTH_SAYING:
        return
    yield Finding(
        "padding_dilutes_metrics",
        "warning",
        f"{len(s.padding_rows)} of {some(num_rows, 'row')} are padding and count as a difference of 0 and a perplexity "
        f"of 1 in the sequence means: log_ppl_abs_diff will read {diluted:.2g} where the real rows give {diff:.2g}.",
        "Read these numbers over rows without the tag is_padding, or multiply the means back by rows / real rows.",
        s.partition_id,
        keys_of(s.padding_rows),
        ("rollout_log_probs", "old_log_probs"),
        {
            "real_rows": len(rows),
            "padding_rows": len(s.padding_rows),
            "log_ppl_abs_diff": round(diff, 4),
            "log_ppl_abs_diff_with_padding": round(diluted, 4),
            "training_ppl": round(ppl, 4),
            "training_ppl_with_padding": round(diluted_ppl, 4),
        },
    )


def stand_ins(s: Situation) -> Iterator[Finding]:
    """synthetic_row (reads response_mask, rm_scores): a row that stands in for a session, and counts as an answer."""
    if s.is_past("compute_advantage"):  # rejection sampling clears masks there
        return
    rows = s.readable_rows
    masks = s.read("response_mask", rows)
    empty = [row for row in rows if row.key in masks and not np.any(masks[row.key])]
    tokens, scores = s.read("responses", empty), s.read("rm_scores", empty)
    bad = [r for r in empty if _is_one_token(tokens.get(r.key)) and not np.any(scores.get(r.key, 0))]
    if bad:
        yield Finding(
            "synthetic_row",
            "warning",
            f"The response of {few(keys_of(bad))} is one token, all of it with mask 0 and no reward: made up for a "
            "session that brought nothing. It counts as a real answer, and its reward of 0 moves its group.",
            "Return nothing for a lost session (the group is then short, and says so), or tag the row is_padding.",
            s.partition_id,
            keys_of(bad),
            ("response_mask",),
            {"rows": len(bad), "response_len": int(np.size(tokens[bad[0].key])), "valid_tokens": 0},
            view="tokens",
        )


def _is_one_token(response: Any) -> bool:
    """True for a response of one token, or of one token again and again."""
    return is_array(response) and bool(np.size(response)) and bool(np.all(response == response.flat[0]))


def too_few_padding_rows(s: Situation) -> Iterator[Finding]:
    """padding_too_short: padding rows, but not enough of them for the batch to divide."""
    dp_size = s.fact("dp_size")
    if not dp_size or not s.padding_rows or not s.is_past("balance_batch") or not s.choices.is_known:
        return
    multiple = s.choices.row_multiple(int(dp_size))
    if len(s.rows) % multiple:
        yield Finding(
            "padding_too_short",
            "error",
            f"{len(s.rows)} rows, {len(s.padding_rows)} of them padding, do not divide by {multiple} (ranks and "
            "mini-batches): the batch cannot be cut into equal chunks.",
            f"Add {some(-len(s.rows) % multiple, 'padding row')} (balance_batch does it).",
            s.partition_id,
            keys_of(s.padding_rows),
            numbers={"rows": len(s.rows), "padding_rows": len(s.padding_rows), "multiple": multiple},
        )


def dumped_padding(s: Situation) -> Iterator[Finding]:
    """synthetic_row: padding rows where every row is taken for an answer."""
    if s.stage != "log_rollout_data" or not s.padding_rows:
        return
    yield Finding(
        "synthetic_row",
        "info",
        f"{some(len(s.padding_rows), 'padding row')} of {len(s.rows)} will be dumped like real answers, with the "
        "ground truth of the first row and the score 0.",
        "Drop rows whose key begins with pad when you read the dump.",
        s.partition_id,
        keys_of(s.padding_rows),
        numbers={"padding_rows": len(s.padding_rows), "rows": len(s.rows), "real_rows": len(s.real_rows)},
    )


def _gaps(s: Situation, rows: Sequence[Row]) -> list[tuple[float, float]]:
    """(mean rollout log-prob, mean actor log-prob) over the trainable tokens of each row."""
    columns: list[dict[str, Any]] = [s.read(f, rows) for f in ("rollout_log_probs", "old_log_probs", "response_mask")]
    out = []
    for row in rows:
        values = [column.get(row.key) for column in columns]
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if len(arrays) < 3 or len({array.shape for array in arrays}) > 1:
            continue
        rollout, actor, mask = arrays
        num = max(float(np.sum(mask)), 1.0)
        out.append((float(np.sum(rollout * mask)) / num, float(np.sum(actor * mask)) / num))
    return out
