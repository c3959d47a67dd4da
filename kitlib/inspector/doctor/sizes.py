"""Lengths within a row: do tags, tokens, masks, log-probs and advantages speak of the same tokens?

verl 0.9.1 and TransferQueue 0.1.11 never compare the lengths of two fields of a row, nor a tag with a field. Read from
shapes alone, one vector of lengths a field.

    P = len(prompts)   R = len(responses)   S = P + R
    [R] response_mask rm_scores old_log_probs advantages ..
    [S] input_ids position_ids log_probs                        [S or R] values entropy
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kitlib.inspector.doctor.finding import Finding, few, verb
from kitlib.inspector.doctor.scene import ABSENT, Row, keys_of, whole
from kitlib.inspector.doctor.situation import Situation

RESPONSE_FIELDS = (
    "response_mask",
    "loss_mask",
    "rollout_log_probs",
    "rm_scores",
    "old_log_probs",
    "ref_log_prob",
    "advantages",
    "returns",
    "token_level_rewards",
    "rollout_is_weights",
    "update_log_probs",
    "loss_share",
)
SEQUENCE_FIELDS = ("input_ids", "position_ids", "log_probs")
EITHER_FIELDS = ("values", "entropy")
TAGGED = (("prompt_len", "prompts"), ("response_len", "responses"), ("seq_len", "input_ids"))


def length_mismatch(s: Situation) -> Iterator[Finding]:
    """length_mismatch: a field of a row has another length than the tokens it belongs to."""
    rows = s.rows
    if not rows or padded_width(s):
        return
    prompt, response = lengths(s, rows, "prompts"), lengths(s, rows, "responses")
    wrong: dict[str, np.ndarray] = {}
    for field in RESPONSE_FIELDS:
        wrong[field] = _differs(lengths(s, rows, field), response)
    whole_rows = np.where((prompt >= 0) & (response >= 0), prompt + response, ABSENT)
    for field in SEQUENCE_FIELDS:
        wrong[field] = _differs(lengths(s, rows, field), whole_rows)
    for field in EITHER_FIELDS:
        own = lengths(s, rows, field)
        wrong[field] = _differs(own, response) & _differs(own, whole_rows)
    wrong["attention_mask"] = (lengths(s, rows, "attention_mask") > whole_rows) & (whole_rows >= 0)
    anywhere = np.any(np.stack(list(wrong.values())), axis=0)
    if not anywhere.any():
        return
    fields = [field for field, marks in wrong.items() if marks.any()]
    bad = [row for row, marked in zip(rows, anywhere.tolist(), strict=True) if marked]
    if s.is_coarse:
        bad = _confirmed(s, bad, fields)
    if bad:
        yield _mismatch(s, bad, fields)


def _confirmed(s: Situation, rows: list[Row], fields: list[str]) -> list[Row]:
    """Those rows whose values have the wrong lengths too: a coarse picture shows the shape of another row."""
    tokens = {name: s.read(name, rows) for name in ("prompts", "responses")}
    columns = {field: s.read(field, rows) for field in fields}
    out = []
    for row in rows:
        prompt, response = (np.size(tokens[name].get(row.key, ())) for name in ("prompts", "responses"))
        right = {f: (response,) if f in RESPONSE_FIELDS else (response, prompt + response) for f in fields}
        own = {f: column[row.key].shape[-1] for f, column in columns.items() if np.ndim(column.get(row.key, 0))}
        if any(length not in right[field] for field, length in own.items()):
            out.append(row)
    return out


def _mismatch(s: Situation, bad: list[Row], fields: list[str]) -> Finding:
    against = ["responses"] if set(fields) <= set(RESPONSE_FIELDS) else ["prompts", "responses"]
    first = bad[0]
    own = {field: _length(s, first, field) for field in [*against, *fields]}
    own = {field: length for field, length in own.items() if length != ABSENT}
    return Finding(
        "length_mismatch",
        "error",
        f"In {few(keys_of(bad))} the lengths do not fit: {', '.join(f'{name} {n}' for name, n in own.items())}"
        f"{f' in {first.key}' if bad[1:] else ''}. The store never compares them; "
        "masks and losses then belong to the wrong tokens, or a stage stops without naming the row.",
        f"Write {few(fields)} of {verb(len(bad), 'this row', 'these rows')} again, one value a token.",
        s.partition_id,
        keys_of(bad),
        (*against, *fields),
        {**own, "rows": len(bad)},
    )


def short_attention_mask(s: Situation) -> Iterator[Finding]:
    """attention_mask_short: attention_mask covers fewer tokens than the row has."""
    rows = s.scene.having(s.rows, "attention_mask")
    if not rows:
        return
    own, tokens = lengths(s, rows, "attention_mask"), lengths(s, rows, "input_ids")
    marked = (own >= 0) & (own < tokens)
    masks = s.read("attention_mask", [row for row in rows if not row.is_padding])
    short = [
        row
        for row, is_short, num_tokens in zip(rows, marked.tolist(), tokens.tolist(), strict=True)
        if is_short or (row.key in masks and np.size(masks[row.key]) and np.sum(masks[row.key]) < num_tokens)
    ]
    if short:
        first = short[0]
        covered = int(np.sum(masks[first.key])) if first.key in masks else _length(s, first, "attention_mask")
        yield Finding(
            "attention_mask_short",
            "error",
            f"attention_mask of {few(keys_of(short))} covers {covered} of {_length(s, first, 'input_ids')} tokens: "
            "the tokens behind it are not attended to, and lengths taken from the mask are wrong.",
            "Write ones for every token of the row, or leave attention_mask out: V1 does not need it.",
            s.partition_id,
            keys_of(short),
            ("attention_mask",),
            {
                "attention_mask": _length(s, first, "attention_mask"),
                "covered": covered,
                "input_ids": _length(s, first, "input_ids"),
                "seq_len": whole(first.tag.get("seq_len")),
                "rows": len(short),
            },
        )


def padded_to_total(s: Situation) -> Iterator[Finding]:
    """padded_to_total: every row is as wide as all rows together."""
    found = padded_width(s)
    if found is None:
        return
    width, longest, fields = found
    yield Finding(
        "padded_to_total",
        "error",
        f"{few(fields)} are {width} wide in every row, and the tags say at most {longest} tokens. {width} is the "
        "number of tokens of all rows together: the last offset was taken for the longest length.",
        "Pad to the longest row, offsets.diff().max() of the jagged column, or store rows without padding.",
        s.partition_id,
        keys_of(s.real_rows),
        tuple(fields),
        {"width": width, "longest": longest, "total": width, "rows": len(s.real_rows)},
    )


def padded_width(s: Situation) -> tuple[int, int, list[str]] | None:
    """(width, longest by tags, fields) if the response fields of all rows have the width of all rows together."""
    width = lengths(s, s.real_rows, "responses")
    if len(width) < 2 or (width != width[0]).any():
        return None
    tagged = [whole(row.tag.get("response_len")) for row in s.real_rows]
    if None in tagged:
        return None
    total, longest = sum(n for n in tagged if n), max(n for n in tagged if n is not None)
    fields = []
    for field in ["responses", *RESPONSE_FIELDS]:
        own = lengths(s, s.real_rows, field)
        if total > longest and (own == total).all():
            fields.append(field)
    return (total, longest, fields) if "responses" in fields else None


def tag_mismatch(s: Situation) -> Iterator[Finding]:
    """tag_mismatch: prompt_len, response_len or seq_len of the tag is not the length of the field."""
    rows = s.rows
    if not rows:
        return
    wrong: dict[str, list[Row]] = {}
    for tag, field in TAGGED:
        said = np.array([ABSENT if (v := whole(row.tag.get(tag))) is None else v for row in rows])
        for row, differs in zip(rows, _differs(said, _tagged(s, rows, field)).tolist(), strict=True):
            if differs:
                wrong.setdefault(row.key, []).append(row)
    if wrong:
        first = next(iter(wrong.values()))[0]
        pairs = [(tag, whole(first.tag.get(tag)), field, int(_tagged(s, [first], field)[0])) for tag, field in TAGGED]
        differ = [f"{tag} {own}, {field} {length}" for tag, own, field, length in pairs if own not in (None, length)]
        yield Finding(
            "tag_mismatch",
            "warning",
            f"The lengths in the tag of {few(list(wrong))} are not those of the fields: {'; '.join(differ)} in "
            f"{first.key}. Balancing trusts the tag.",
            "Write the tag from the row that is stored.",
            s.partition_id,
            tuple(wrong),
            numbers={"rows": len(wrong)},
            view="batch_handle",
        )


def empty_responses(s: Situation) -> Iterator[Finding]:
    """empty_response: rows whose response has no token."""
    empty = [r for r, n in zip(s.real_rows, lengths(s, s.real_rows, "responses").tolist(), strict=True) if n == 0]
    if empty:
        yield Finding(
            "empty_response",
            "info",
            f"{few(keys_of(empty))} {verb(len(empty), 'has', 'have')} an empty response and no token to train: the "
            "model closed at once, or the answer was cut off.",
            "Nothing to do if it is rare.",
            s.partition_id,
            keys_of(empty),
            ("responses",),
            {"rows": len(empty)},
        )


def lengths(s: Situation, rows: Sequence[Row], field: str) -> np.ndarray:
    """int64 [num_rows]: length of the last dim of the field in each row, ABSENT where there is no such tensor."""
    partition = s.scene.partition
    column = partition.column_of.get(field)
    if column is None or not rows:
        return np.full(len(rows), ABSENT, dtype=np.int64)
    return s.scene.last_dims[partition.codes[s.positions(rows), column]]


def _tagged(s: Situation, rows: Sequence[Row], field: str) -> np.ndarray:
    """What a tag speaks of: seq_len of prompts and responses together, where both are there."""
    own = lengths(s, rows, field)
    if field != "input_ids":
        return own
    prompt, response = lengths(s, rows, "prompts"), lengths(s, rows, "responses")
    return np.where((prompt >= 0) & (response >= 0), prompt + response, own)


def _length(s: Situation, row: Row, field: str) -> int:
    return int(lengths(s, [row], field)[0])


def _differs(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (own >= 0) & (other >= 0) & (own != other)
