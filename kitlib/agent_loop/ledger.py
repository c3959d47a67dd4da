"""TaskLedger: the owner of every background task, and where their failures surface.

verl 0.9.1: none. AgentLoopWorkerTQ.background_tasks (trainer/ppo/v1/agent_loop_tq.py) keeps tasks from being garbage
collected and drops them when they end; an exception that nobody awaited is then only a line in the log.

    spawn ──> running [──> ending] ──> finished | failed | cancelled

A failed session is not the end of the run: its prompt gets the status `failure`, as in verl. A *fatal* error is: a
prompt task that died, a reward that cannot be computed, a queue or a server that is gone. `raise_if_failed` raises it
in the thread that asks, and `failed_event` is set for a thread that waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from kitlib.agent_loop.errors import AgentLoopError
from kitlib.errors import KitError

TaskState = Literal["running", "ending", "finished", "failed", "cancelled"]
END_SECONDS = 10.0  # for the last act of a task
MAX_FAILURES_KEPT = 256  # an exception holds on to its frames and their tensors


@dataclass
class TaskRecord:
    """One background task: a prompt (session_id None) or a session of it."""

    name: Literal["prompt", "session"]
    uid: str
    session_id: int | None
    started: float  # seconds since the epoch
    state: TaskState = "running"
    seconds: float | None = None  # how long it took; None while it runs
    exception: BaseException | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.uid}" + ("" if self.session_id is None else f"_{self.session_id}")


class TaskLedger:
    """Thread-safe; `spawn` and `cancel_all` are called on the event loop whose tasks they mean."""

    def __init__(self) -> None:
        self.failed_event = threading.Event()  # set once a fatal error is known
        self._lock = threading.Condition()  # rings when a task has ended
        self._running: dict[asyncio.Task[Any], TaskRecord] = {}
        self._failures: deque[TaskRecord] = deque(maxlen=MAX_FAILURES_KEPT)
        self._fatal: BaseException | None = None
        self._fatal_where = ""

    def spawn(
        self,
        coroutine: Coroutine[Any, Any, Any],
        *,
        name: Literal["prompt", "session"],
        uid: str,
        session_id: int | None = None,
    ) -> asyncio.Task[Any]:
        """Start a task on the running event loop and own it until it ends."""
        task = asyncio.get_running_loop().create_task(coroutine)
        record = TaskRecord(name, uid, session_id, started=time.time())
        with self._lock:
            self._running[task] = record
        task.add_done_callback(self._settle)
        return task

    def declare_fatal(self, error: BaseException, where: str) -> None:
        """Stop the run with `error`; the first one counts.

        `where` names the task for errors that do not say it themselves.
        """
        with self._lock:
            if self._fatal is None:
                self._fatal, self._fatal_where = error, where
        self.failed_event.set()

    def running(self) -> tuple[TaskRecord, ...]:
        """Tasks that have not ended, oldest first. Those that are ending on another thread are waited for."""
        here = asyncio._get_running_loop()
        with self._lock:
            self._lock.wait_for(lambda: not self._ending_beside(here), END_SECONDS)
            return tuple(self._running.values())

    def mark_ending(self) -> None:
        """Called by a task before its last act, which tells others that it is done: who hears it finds it ended."""
        task = asyncio.current_task()
        with self._lock:
            if task in self._running:
                self._running[task].state = "ending"

    def failures(self) -> tuple[TaskRecord, ...]:
        """Tasks that raised, oldest first; the last 256 of them."""
        with self._lock:
            return tuple(self._failures)

    def raise_if_failed(self) -> None:
        """Raise the first fatal error, if any: as it is if it is a KitError, else as the cause of an AgentLoopError."""
        if self._fatal is None:
            return
        if isinstance(self._fatal, KitError):
            raise self._fatal
        raise AgentLoopError(
            f"the agent loop cannot go on: {self._fatal_where}: {type(self._fatal).__name__}: {self._fatal}"
        ) from self._fatal

    async def cancel_all(self) -> None:
        """Cancel the tasks of the running event loop and wait until they have ended."""
        loop = asyncio.get_running_loop()
        with self._lock:
            tasks = [task for task in self._running if task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ending_beside(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        return any(one.state == "ending" and task.get_loop() is not loop for task, one in self._running.items())

    def _settle(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        with self._lock:
            record = self._running.pop(task)
            record.seconds = time.time() - record.started
            record.state = "cancelled" if task.cancelled() else "failed" if error else "finished"
            if error is not None:
                record.exception = error
                self._failures.append(record)
            self._lock.notify_all()
        if error is not None and record.name == "prompt":
            self.declare_fatal(error, str(record))
