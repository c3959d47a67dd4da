"""The `@stage` decorator: times a stage, records its begin and end, and holds it to the contract in strict mode.

verl 0.9.1 has `marked_timer` around the calls of trainer/ppo/v1/trainer_base.py and nothing that checks fields: a
column that one row lacks surfaces as a KeyError in a later stage, without a key. Here the stage that needs the column
says so first."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kitlib.contract.stages import STAGES, needs
from kitlib.errors import KitError

_SHOWN = 4
T = TypeVar("T")


class Batch(Protocol):
    """What the decorator needs of a batch handle (KVBatchMeta)."""

    keys: list[str]
    partition_id: str | None


class ContractError(KitError):
    """A stage would read, or has failed to write, a field on some row. `.cells` lists every (key, field)."""

    def __init__(self, message: str, stage: str, cells: Sequence[tuple[str, str]]) -> None:
        super().__init__(message)
        self.stage = stage
        self.cells = list(cells)


@dataclass
class StageRecord:
    """One run of a stage. `seconds` is None while it runs; `error` holds the text of what ended it, if anything did."""

    stage: str
    global_steps: int
    started: float  # time.time()
    num_rows: int  # of the handle or the prompts that it was given; else of the handle that it gave back
    partition_id: str | None = None
    seconds: float | None = None
    error: str | None = None


class StageOwner(Protocol):
    """The object whose methods are stages (a PPOTrainer)."""

    config: Any
    strict: bool
    global_steps: int
    timing_raw: dict[str, float]

    def on_stage(self, record: StageRecord) -> None:
        """Called at the begin (seconds is None) and at the end of each stage."""

    def signed_as(self, name: str) -> AbstractContextManager[None]:
        """Entered around the method: whoever keeps an event log of the queue signs the calls inside."""

    def missing_cells(self, batch: Batch, fields: Sequence[str]) -> list[tuple[str, str]]:
        """Every (key, field) that the queue does not hold; a key that is not there counts with every field."""


def stage(name: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Make a method a stage of the contract.

    Begin and end go to `self.on_stage`; the seconds of a stage that succeeds are added to `self.timing_raw`. With
    `self.strict`, the fields that the contract requires are checked on every row of the batch handle before the call
    (reads) and on the handle that comes back after it (writes); a missing one raises ContractError.
    """
    spec = STAGES[name]

    def decorate(method: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(method)
        def run(self: StageOwner, *args: Any, **kwargs: Any) -> T:
            batch = _handle((*args, *kwargs.values()))
            record = StageRecord(name, self.global_steps, time.time(), _num_rows((*args, *kwargs.values())))
            record.partition_id = batch.partition_id if batch else None
            self.on_stage(record)
            record.started, begin = time.time(), time.perf_counter()  # after what the observers took
            try:
                if self.strict and batch:
                    _check(self, name, batch, needs(name, self.config).reads, before=True)
                with self.signed_as(name):
                    result = method(self, *args, **kwargs)
                record.num_rows = record.num_rows or _num_rows((result,))
                if self.strict:
                    written = _handle((result,)) or batch
                    if written:
                        _check(self, name, written, needs(name, self.config).writes, before=False)
            except BaseException as error:
                record.error = f"{type(error).__name__}: {error}"
                raise
            finally:
                record.seconds = time.perf_counter() - begin
                self.on_stage(record)
            if spec.timer:
                self.timing_raw[spec.timer] = self.timing_raw.get(spec.timer, 0.0) + record.seconds
            return result

        return run

    return decorate


def _handle(candidates: tuple[Any, ...]) -> Any:
    """The first batch handle among the arguments (a TensorDict has a method `keys`, not a list)."""
    for candidate in candidates:
        if isinstance(getattr(candidate, "keys", None), list) and hasattr(candidate, "partition_id"):
            return candidate
    return None


def _num_rows(candidates: tuple[Any, ...]) -> int:
    """Of the first batch handle among them, or else of the first TensorDict (a batch of prompts); 0 without either."""
    handle = _handle(candidates)
    if handle:
        return len(handle.keys)
    return next((int(c.batch_size[0]) for c in candidates if getattr(c, "batch_size", None)), 0)


def _check(owner: StageOwner, name: str, batch: Batch, fields: tuple[str, ...], before: bool) -> None:
    cells = owner.missing_cells(batch, fields) if fields and batch.keys else []
    if cells:
        raise ContractError(_explain(name, batch, cells, before), name, cells)


def _explain(name: str, batch: Batch, cells: list[tuple[str, str]], before: bool) -> str:
    by_field: dict[str, list[str]] = {}
    for key, field in cells:
        by_field.setdefault(field, []).append(key)
    lines = []
    for field, keys in by_field.items():
        verb = "needs" if before else "should have written"
        lines.append(f"{name} {verb} {field} on every row; {_lacking(keys, len(batch.keys))}.")
        if before:
            writers = [s.name for s in STAGES.values() if any(need.field == field for need in s.writes)]
            lines.append(f"  {field} is written by: {' or '.join(writers) or 'no stage'}.")
    if before and any(len(keys) < len(batch.keys) for keys in by_field.values()):
        lines.append(f"  A plain kv_batch_get would have dropped the column for all {len(batch.keys)} rows.")
    lines.append(f"  See: kitlib.explain_get(tq, batch, {sorted(by_field)})")
    return "\n".join(lines)


def _lacking(keys: list[str], num_rows: int) -> str:
    if len(keys) == num_rows > 1:
        return f"none of the {num_rows} rows has it"
    shown = ", ".join(keys[:_SHOWN]) + (f", ... ({len(keys) - _SHOWN} more)" if len(keys) > _SHOWN else "")
    return f"{len(keys)} of {num_rows} lack{'s' if len(keys) == 1 else ''} it: {shown}"
