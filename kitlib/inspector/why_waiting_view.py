"""Why is it waiting: what does sample() wait for, and will it end?

verl 0.9.1 logs four counters a minute (trainer/ppo/v1/replay_buffer.py). What is waited for is worked out by
kitlib.replay_buffer (`ReplayBuffer.why_waiting()`); this view shows it and adds, from an event log, when each prompt
was last written and by whom.

    sample(train, 64 prompts) at step 214: 63 of 64 ready, waiting 41.2 s   WILL NOT END BY ITSELF
    pending 0, running 1, finished 63, failure 0
    prompt  status   sessions  submitted    task      last write
    u64     running  8 of 8    this step    none      u64_7_0 38.9 s before the end of the log by agent-loop-2
    Will it end? Not by itself: no task of u64 is running any more. Set them to finished, or clear and submit again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kitlib.inspector.history import Events, events_of, seconds_text, signature
from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.view import PAGE_BUDGET, View
from kitlib.keys import uid_of
from kitlib.transfer_queue import Event

STATUS_STATES = {"pending": State.DIM, "running": State.WARN}
TASKS = {True: ("running", State.GOOD), False: ("none", State.BAD), None: ("not known", State.DIM)}


class Prompt(Protocol):
    """A prompt in flight (kitlib.replay_buffer.waiting.BlockingPrompt)."""

    @property
    def uid(self) -> str: ...

    @property
    def status(self) -> str: ...

    @property
    def sessions_present(self) -> int: ...

    @property
    def sessions_expected(self) -> int | None: ...

    @property
    def age(self) -> int: ...

    @property
    def is_live(self) -> bool | None: ...


class Report(Protocol):
    """What a wait waits for (kitlib.replay_buffer.waiting.WaitReport)."""

    @property
    def request(self) -> str: ...

    @property
    def counts(self) -> str: ...

    @property
    def can_end(self) -> bool: ...

    @property
    def verdict(self) -> str: ...

    @property
    def blocking(self) -> Sequence[Prompt]: ...

    @property
    def held_back_by(self) -> Sequence[str]: ...


def why_waiting(
    report: Report | None, events: Events | None = None, *, title: str = "", budget: int = PAGE_BUDGET
) -> View:
    """The report of `replay_buffer.why_waiting()`, or of `recording.waiting_at(moment)`, as a view.

    None (nobody waits) is said in the first line.

    events: adds the last write of each prompt in flight (kitlib.inspector.history.Events).
    """
    if report is None:
        return View(ViewModel(line(("sample", State.STRONG), ("nobody waits", State.GOOD)), line(title)), budget)
    log = [] if events is None else events_of(events)
    names = ShortNames(prompt.uid for prompt in report.blocking)
    will = ("it will end", State.GOOD) if report.can_end else ("WILL NOT END BY ITSELF", State.BAD)
    held = (
        f"strategy wait: held back until the end of {listed(list(report.held_back_by))}" if report.held_back_by else ""
    )
    model = ViewModel(
        headline=line((report.request, State.STRONG), will),
        facts=line(title, (report.counts, State.DIM)),
        tables=(_table(report.blocking, names, log),) if report.blocking else (),
        notes=tuple(
            note
            for note in (
                cell(held, State.WARN) if held else None,
                line(("Will it end?", State.STRONG), report.verdict),
                cell(names.note(), State.DIM) if names.note() else None,
            )
            if note is not None
        ),
    )
    return View(model, budget)


def _table(blocking: Sequence[Prompt], names: ShortNames, log: Sequence[Event]) -> Table:
    columns = (
        Column("prompt"),
        Column("status"),
        Column("sessions", hover="that have a row, of those expected"),
        Column("submitted"),
        Column("task", hover="is a background task of this prompt running?"),
        *([Column("last write", flow=True)] if log else []),
    )
    last = _last_writes(log)
    return Table(columns, tuple(_row(prompt, names, log, last) for prompt in blocking), row_noun="prompts")


def _last_writes(log: Sequence[Event]) -> dict[str, tuple[Event, str]]:
    """uid -> its last put and one key of it."""
    last: dict[str, tuple[Event, str]] = {}
    for event in log:
        if event.is_put and event.error is None:
            for key in event.keys:
                last[uid_of(key)] = (event, key)
    return last


def _row(
    prompt: Prompt, names: ShortNames, log: Sequence[Event], last: dict[str, tuple[Event, str]]
) -> tuple[Cell, ...]:
    expected = "?" if prompt.sessions_expected is None else prompt.sessions_expected
    complete = prompt.sessions_present == prompt.sessions_expected
    ago = "this step" if prompt.age == 0 else f"{count(prompt.age, 'step')} ago"
    return (
        Cell((names.span(prompt.uid, State.STRONG),)),
        cell(prompt.status, STATUS_STATES.get(prompt.status, State.PLAIN)),
        line(
            f"{prompt.sessions_present} of {expected}",
            ("all done, only the status is missing", State.BAD) if complete else "",
        ),
        cell(ago, State.WARN if prompt.age else State.PLAIN),
        cell(*TASKS[prompt.is_live]),
        *([_last_write(prompt.uid, names, log, last)] if log else []),
    )


def _last_write(uid: str, names: ShortNames, log: Sequence[Event], last: dict[str, tuple[Event, str]]) -> Cell:
    if uid not in last:
        return cell("none in this log", State.WARN)
    event, key = last[uid]
    before_end = log[-1].started_at + log[-1].seconds - event.started_at
    return line(
        Cell((names.span(key),)).spans[0], f"{seconds_text(before_end)} before the end of the log by {signature(event)}"
    )
