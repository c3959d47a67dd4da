"""The wait inside `sample`: woken by changes of the queue, bounded, and able to say what it waits for.

verl 0.9.1 polls every two seconds without a bound and logs four counters a minute. Here `why_waiting` answers while
another thread waits:

    sample(train, 64 prompts) at step 214: 63 of 64 ready, waiting 41.2 s
      pending 0, running 1, finished 63, failure 0
      u64 running, 8 of 8 sessions have a row: the work is done, only the status update is missing
      Will it end? Not by itself: no task of u64 is running any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from kitlib.keys import TrajectoryKey, is_trajectory_key
from kitlib.replay_buffer.errors import SampleError
from kitlib.replay_buffer.prompts import PartitionView

if TYPE_CHECKING:
    from kitlib.replay_buffer.buffer import ReplayBuffer

NUM_SHOWN = 8


class Waiting:
    """One wait of one `sample` call, as a context manager."""

    def __init__(self, buffer: ReplayBuffer, global_steps: int, partition_id: str, batch_size: int) -> None:
        self.buffer = buffer
        self.global_steps = global_steps
        self.partition_id = partition_id
        self.batch_size = batch_size
        self.began = time.monotonic()
        self._last_change = self.began
        self._version = getattr(buffer.tq, "version", 0)

    def __enter__(self) -> Waiting:
        self.buffer._waiting = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.buffer._waiting = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def wait(self) -> None:
        """Sleep until the queue changes (or `poll_interval` has passed).

        Raises what a dead background task raised, and SampleError when nothing has changed for `give_up_after` seconds
        and nothing in flight could still complete the batch.
        """
        buffer = self.buffer
        buffer.raise_if_failed()
        if self._sleep(min(buffer.poll_interval, buffer.give_up_after)):
            self._last_change = time.monotonic()
        elif time.monotonic() - self._last_change >= buffer.give_up_after:
            report = explain_wait(self, lambda: buffer.view(self.partition_id), buffer.live_uids)
            if not report.can_end:
                raise SampleError(str(report))
        buffer.raise_if_failed()

    def _sleep(self, timeout: float) -> bool:
        """True if the queue has changed. A store that cannot say so is looked at after every sleep."""
        tq = self.buffer.tq
        if not hasattr(tq, "wait_for_change"):
            time.sleep(timeout)
            return False
        before = self._version
        self._version = tq.wait_for_change(since=before, timeout=timeout)
        return self._version != before


@dataclass(frozen=True)
class BlockingPrompt:
    """A prompt in flight."""

    uid: str
    status: str
    sessions_present: int
    sessions_expected: int | None
    age: int  # steps since it was submitted
    is_live: bool | None  # has a running task; None where nobody can tell

    def __str__(self) -> str:
        expected = "?" if self.sessions_expected is None else self.sessions_expected
        text = f"{self.uid} {self.status}, {self.sessions_present} of {expected} sessions have a row"
        if self.age:
            text += f", submitted {self.age} step{'s' if self.age > 1 else ''} ago"
        if self.sessions_present == self.sessions_expected:
            text += ": the work is done, only the status update to finished is missing"
        return text


@dataclass(frozen=True)
class WaitReport:
    """What a wait is waiting for. `can_end`: True (slow), False (never, see `verdict`)."""

    request: str
    counts: str
    blocking: tuple[BlockingPrompt, ...]
    can_end: bool
    verdict: str
    held_back_by: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        lines = [self.request, f"  {self.counts}", *(f"  {prompt}" for prompt in self.blocking[:NUM_SHOWN])]
        if len(self.blocking) > NUM_SHOWN:
            lines.append(f"  ... and {len(self.blocking) - NUM_SHOWN} more in flight")
        if self.held_back_by:
            lines.append(f"  strategy wait: held back until the end of {', '.join(self.held_back_by[:NUM_SHOWN])}")
        return "\n".join([*lines, f"  Will it end? {self.verdict}"])


def explain_wait(
    waiting: Waiting, look: Callable[[], PartitionView], live_uids: Callable[[], set[str]] | None
) -> WaitReport:
    """Look at the prompts in flight and judge whether they can still complete the batch.

    Tasks are asked for before the look and after it: one that ends or begins meanwhile is not taken for dead.
    """
    live = live_uids() if live_uids is not None else None
    view = look()
    if live is not None and live_uids is not None:
        live = live | live_uids()
    blocking = tuple(
        _blocking_prompt(waiting, view, uid, status, live)
        for status in ("pending", "running")
        for uid in view.prompts[status]
    )
    ready = len(view.terminal)
    held = waiting.buffer.held_back_by(waiting.global_steps, view)
    can_end, verdict = _verdict(waiting, view, blocking, ready)
    return WaitReport(
        request=f"sample({waiting.partition_id}, {waiting.batch_size} prompts) at step {waiting.global_steps}: "
        f"{ready} of {waiting.batch_size} ready, waiting {waiting.seconds:.1f} s",
        counts=view.counts(),
        blocking=blocking,
        can_end=can_end,
        verdict=verdict,
        held_back_by=tuple(held),
    )


def _blocking_prompt(
    waiting: Waiting, view: PartitionView, uid: str, status: str, live: set[str] | None
) -> BlockingPrompt:
    sessions = {TrajectoryKey.parse(key).session_id for key in view.keys_of([uid]) if is_trajectory_key(key)}
    return BlockingPrompt(
        uid=uid,
        status=status,
        sessions_present=len(sessions),
        sessions_expected=view.expected_sessions.get(uid),
        age=waiting.global_steps - view.prompts[status][uid],
        is_live=None if live is None else uid in live,
    )


def _verdict(
    waiting: Waiting, view: PartitionView, blocking: tuple[BlockingPrompt, ...], ready: int
) -> tuple[bool, str]:
    lacking = waiting.batch_size - ready
    if lacking > len(blocking):
        return False, (
            f"No: {lacking} more prompts are needed and {len(blocking)} are in flight. Submit "
            f"{lacking - len(blocking)} more prompts, or sample fewer (data.train_batch_size)."
        )
    dead = [prompt.uid for prompt in blocking if prompt.is_live is False]
    if len(blocking) - len(dead) < lacking or (dead and lacking <= 0):
        return False, (
            f"Not by itself: no task of {', '.join(dead[:NUM_SHOWN])} is running any more. Set them to finished, or "
            "clear and submit them again."
        )
    return True, "Yes, it is slow: the sessions in flight are still running."
