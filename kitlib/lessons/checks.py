"""Checks of predictions: the truth comes from the queue and the contract, the mistake is named.

A check compares what the reader expected with what the snapshots show. It says which kind of mistake an answer holds
(a field that was there before, one of a later stage, one that this config switches off, a slip of the pen) and gives a
hint to what is missing, but not the answer: that is folded below the cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kitlib.contract import FIELDS, STAGES, needs
from kitlib.inspector.render.wording import count, joined
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.reading import names_of, whole_number_of
from kitlib.transfer_queue import QueueProtocol, QueueSnapshot
from kitlib.transfer_queue.explain import near_names


def check_new_fields(
    answer: Any, before: QueueSnapshot, after: QueueSnapshot, config: Any = None, partition_id: str = "train"
) -> Answer:
    """Which fields have appeared between two snapshots? `answer` is a set (or list) of names."""
    if unanswered(answer):
        return open_answer()
    said = names_of(answer)
    if said is None:
        return mistakes([_NOT_NAMES.format(answer)])
    old, new = _fields(before, partition_id), _fields(after, partition_id)
    appeared = new - old
    wrong = [_why_not_new(name, old, config) for name in sorted(said - appeared)]
    missing = sorted(appeared - said)
    if missing:
        hints = "; ".join(f"{FIELDS[name].meaning!r} {FIELDS[name].shape}" for name in missing if name in FIELDS)
        wrong.append(f"{count(len(missing), 'field')} still missing from your answer: {hints or 'not in the contract'}")
    if wrong:
        return mistakes(wrong)
    return right(f"{joined(sorted(appeared))} appeared, and nothing else did")


def check_read(
    num_rows: Any,
    columns: Any,
    tq: QueueProtocol,
    keys: Sequence[str],
    partition_id: str,
    select_fields: Sequence[str] | None = None,
) -> Answer:
    """How many rows and which columns does this `kv_batch_get` give back? Reads the queue to find out."""
    if unanswered(num_rows, columns):
        return open_answer()
    said = names_of(columns)
    if said is None:
        return mistakes([_NOT_NAMES.format(columns)])
    rows = whole_number_of(num_rows)
    if rows is None:
        return mistakes([f"num_rows is a whole number, not {num_rows!r}"])
    data = tq.kv_batch_get(list(keys), partition_id, None if select_fields is None else list(select_fields))
    got = {str(name) for name in data.keys()}
    asked = set(select_fields) if select_fields is not None else got | said
    wrong = _wrong_rows(rows, len(data), len(keys)) + _wrong_columns(said, got, asked)
    if wrong:
        return mistakes(wrong)
    return right(f"{count(len(data), 'row')}, {joined(sorted(got)) or 'no column'}, and no error")


_NOT_NAMES = 'the answer is a set of names, such as {{"prompts", "responses"}}, not {!r}'


def _fields(snapshot: QueueSnapshot, partition_id: str) -> set[str]:
    partition = snapshot.partitions.get(partition_id)
    return set(partition.fields) if partition is not None else set()


def _why_not_new(name: str, old: set[str], config: Any) -> str:
    if name in old:
        return f"{name} was there before"
    if name not in FIELDS:
        return f"{name} is no field of the contract{_near(name, FIELDS)}"
    writers = [stage.name for stage in STAGES.values() if any(need.field == name for need in stage.writes)]
    if not writers:
        return f"{name} is written by no stage: only {FIELDS[name].group} rows have it"
    if not any(needs(writer, config).runs and name in needs(writer, config).writes for writer in writers):
        return f"{name} is written by {joined(writers, 'or')}, which this config switches off"
    return f"{name} is written by {joined(writers, 'or')}, not by this stage"


def _near(name: str, known: Iterable[str]) -> str:
    near = near_names(name, known)
    return f"; did you mean {joined(near, 'or')}?" if near else ""


def _wrong_rows(said: int, got: int, num_keys: int) -> list[str]:
    if said == got:
        return []
    if said > num_keys:
        return [f"not {count(said, 'row')}: only {count(num_keys, 'key')} are asked for"]
    if got == num_keys:
        return [f"not {count(said, 'row')}: a key that exists always gives a row, whatever fields it lacks"]
    if said == num_keys:
        return [f"not {count(said, 'row')}: a key that does not exist gives no row and no error"]
    return [f"not {count(said, 'row')}: count the keys that exist"]


def _wrong_columns(said: set[str], got: set[str], asked: set[str]) -> list[str]:
    wrong = [f"{name} was not asked for" for name in sorted(said - asked)]
    wrong += [
        f"{name} does not come back: a column is delivered only if every requested row has it"
        for name in sorted(said & asked - got)
    ]
    if lost := got - said:
        wrong.append(f"{count(len(lost), 'column')} still missing from your answer: some field is on every row")
    return wrong
