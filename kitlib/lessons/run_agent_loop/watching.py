"""Watch the agent loop at work: wait until its sessions run, draw what its server did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kitlib.inspector import View
from kitlib.inspector.render.model import Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.lessons.expect import LessonError
from kitlib.lessons.rollout import POLL_SECONDS
from kitlib.rollout.request_log import RequestRecord

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer

NUM_BINS = 60


def wait_for_sessions(trainer: PPOTrainer, partition_id: str = "train", timeout: float = 120.0) -> str:
    """Wait until every prompt of the partition is running with all of its sessions; says how many there are.

    Only of use while the servers sleep: otherwise the first sessions have ended before the last ones begin. Raises
    what a background task has died of, and LessonError after `timeout` seconds.
    """
    ledger, deadline = trainer.agent_loop_manager.ledger, time.monotonic() + timeout
    while True:
        ledger.raise_if_failed()
        markers = [tag for tag in trainer.tq.kv_list(partition_id)[partition_id].values() if tag.get("is_prompt")]
        statuses = {tag["status"] for tag in markers}
        num_sessions = sum(record.name == "session" for record in ledger.running())
        if statuses == {"running"} and num_sessions == sum(tag["num_sessions"] for tag in markers):
            return f"{count(len(markers), 'prompt')} running, {count(num_sessions, 'session')} in the task ledger"
        if time.monotonic() > deadline:
            raise LessonError(f"after {timeout:g} s: prompts {statuses}, {count(num_sessions, 'session')} running")
        time.sleep(POLL_SECONDS)


def request_lives(records: Sequence[RequestRecord]) -> View:
    """When each request was decoded, one bar a request, in the order in which they began. Records may repeat."""
    lives = sorted({id(record): record for record in records}.values(), key=lambda record: record.started)
    began = lives[0].started
    seconds = max(ended(record) for record in lives) - began
    columns = (Column("request"), Column("tokens", align="right"), Column(f"0 to {1000 * seconds:.0f} ms"))
    rows = tuple(
        (cell(record.request_id, State.STRONG), cell(record.num_tokens), cell(_bar(record, began, seconds)))
        for record in lives
    )
    most = max(sum(r.started <= record.started < ended(r) for r in lives) for record in lives)
    head = line(f"{count(len(lives), 'request')}, at most {most} of them at once")
    return View(ViewModel(head, tables=(Table(columns, rows, row_noun="requests"),)))


def ended(record: RequestRecord) -> float:
    """When a request left its server, seconds since the epoch; now if it is still there."""
    return time.time() if record.seconds is None else record.started + record.seconds


def _bar(record: RequestRecord, began: float, seconds: float) -> str:
    first, last = (round(NUM_BINS * (moment - began) / seconds) for moment in (record.started, ended(record)))
    return "·" * first + "█" * max(1, last - first) + "·" * (NUM_BINS - max(last, first + 1))
