"""The sentences of a presence view: the verdict of its first line, the counts, and what a plain get would do.

What a get would do is how the TransferQueue package 0.1.11 behaves: a column that one requested row lacks is left out
for all rows without an error, and a requested row without any field makes the call fail.
"""

from __future__ import annotations

from typing import Any

from kitlib.contract import STAGES
from kitlib.inspector.judgement import short_condition, why_needed, writers
from kitlib.inspector.presence_rows import PresenceRows
from kitlib.inspector.render.model import Cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, joined, lacks, listed
from kitlib.inspector.sample_words import verdict_before_sample

MAX_FIELDS = 3  # fields named in one sentence


def verdict(rows: PresenceRows) -> tuple[str, State]:
    """Is it enough for the next stage? Without a stage: is every row like the others?"""
    if rows.judgement.needs is None:
        return _evenness(rows)
    stage, needs = STAGES[rows.judgement.needs.stage], rows.judgement.needs
    if not needs.runs:
        return f"NOT RUN under this config: {stage.runs_when.text}", State.WARN
    if absent := rows.selection.absent:
        named = listed([rows.names.key(key) for key in absent], 2)
        return f"NOT READY: {count(len(absent), 'key')} of the batch not in the queue ({named})", State.BAD
    if missing := rows.lacking_any(needs.reads):
        return f"NOT READY: {_lacks(rows, missing)}", State.BAD
    if "status" in stage.tags_read:
        return verdict_before_sample(rows)
    if not needs.reads:
        return f"READY: {stage.name} needs no field", State.GOOD
    if not rows.keys:
        return "NOT READY: no row yet", State.BAD
    whole = f"all {count(len(rows.keys), 'row')} have" if len(rows.keys) > 1 else "the row has"
    return f"READY: {whole} the {count(len(needs.reads), 'field')} that {stage.name} reads", State.GOOD


def _evenness(rows: PresenceRows) -> tuple[str, State]:
    if not rows.keys:
        return "no row yet", State.WARN
    if uneven := list(rows.lacking_any(rows.fields)):
        return f"UNEVEN: {count(len(uneven), 'field')} not on every row: {listed(uneven, MAX_FIELDS)}", State.WARN
    return f"EVEN: every row has the same {count(len(rows.fields), 'field')}", State.GOOD


def _lacks(rows: PresenceRows, missing: dict[str, list[str]]) -> str:
    said = [lacks(len(keys), len(rows.keys), field, keys, rows.names.key) for field, keys in missing.items()]
    left_out = len(said) - MAX_FIELDS
    return "; ".join(said[:MAX_FIELDS]) + (f"; {count(left_out, 'more field', 'more fields')}" if left_out > 0 else "")


def facts(rows: PresenceRows, title: str) -> Cell:
    """How many rows, groups, kinds of row, padding rows, prompt markers."""
    num_kinds = len(rows.kinds(range(len(rows.keys)), range(len(rows.fields))))
    said = [count(len(rows.keys), "row"), count(rows.num_groups(), "group"), f"{count(num_kinds, 'kind')} of row"]
    said += [f"{num_padding} padding"] if (num_padding := int(rows.padding.sum())) else []
    said += [count(len(rows.selection.markers), "prompt marker")] if rows.selection.markers else []
    return line(title, *[(fact, State.DIM) for fact in said])


def narrowing(rows: PresenceRows) -> list[Cell]:
    """What a plain kv_batch_get of these rows would do, where that is not what one expects; [] where it would do no
    harm."""
    asked = (*rows.judgement.reads, *rows.judgement.optional) if rows.judgement.stage else rows.fields
    dropped = rows.lacking_any(asked)
    if not rows.keys or not dropped:
        return []
    fields = joined(list(dropped)[:MAX_FIELDS]) + (" .." if len(dropped) > MAX_FIELDS else "")
    keys = f"these {len(rows.keys):,} keys" if len(rows.keys) > 1 else "this key"
    call = f"kv_batch_get({keys}, {fields})"
    if bare := rows.bare():
        have = f"{count(len(bare), 'row')} {'has' if len(bare) == 1 else 'have'} no field at all"
        named = listed([rows.names.key(key) for key in bare], 3)
        return [line((f"{call} would raise ValueError:", State.STRONG), f"{have}: {named}")]
    reasons = _lacks(rows, dropped)
    if all(len(lacking) == len(rows.keys) for lacking in dropped.values()):
        return [line((f"{call} would return nothing, and no error:", State.STRONG), reasons)]
    outcome = f"would return {count(len(rows.keys), 'row')} WITHOUT {fields}, and no error:"
    return [line((f"{call} {outcome}", State.STRONG), reasons)]


def reasons(rows: PresenceRows, config: Any, show_off: bool = False) -> list[str]:
    """Why the stage reads the fields that are missing and who writes them; with `show_off` also which fields the
    config switches off."""
    stage = rows.judgement.stage
    said = [_why(stage, field, config) for field in rows.lacking_any(rows.judgement.reads)] if stage else []
    if rows.judgement.off and show_off:
        fields = [f"{name} ({short_condition(when)})" if when else name for name, when in rows.judgement.off]
        said.append(f"switched off by {'verl defaults' if config is None else 'this config'}: {'; '.join(fields)}")
    return said


def _why(stage: str, field: str, config: Any) -> str:
    condition = why_needed(stage, field)
    because = f" because {condition}" if condition else ""
    assumed = " (no config given: verl defaults)" if condition and config is None else ""
    return f"{stage} reads {field}{because}{assumed}; written by {joined(writers(field), 'or') or 'no stage'}"
