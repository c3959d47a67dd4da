"""Calls a reward function beside the event loop, with a time limit, and counts what goes wrong.

verl 0.9.1: experimental/reward_loop/reward_manager/naive.py (a thread for a function that is not async). There is no
time limit there: a function that hangs holds its session, and so its step, for ever.

A thread cannot be ended from outside. A function that exceeds its time is given up: its thread goes on until the
function returns, and as a daemon it does not keep the program alive. What must end (a program that a model wrote) runs
in a process instead: see sandbox.py.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

KINDS = ("timeouts", "exceptions")


class NoAnswerError(Exception):
    """The function did not return in time. (A TimeoutError may as well be the function's own.)"""


class RewardFailures:
    """How often reward functions failed since the last look; filled from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str) -> None:
        """Count one failure; `kind` is one of KINDS."""
        with self._lock:
            self._counts[kind] += 1

    def take(self) -> dict[str, int]:
        """reward/num_timeouts and reward/num_exceptions since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return {f"reward/num_{kind}": counts[kind] for kind in KINDS}


async def call(function: Callable[..., Any], arguments: dict[str, Any], on_loop: bool, timeout: float | None) -> Any:
    """The result of a plain or async function; a plain one gets a thread, unless it may run on the event loop.

    Raises what the function raises, and NoAnswerError after `timeout` seconds (None: no limit).
    """

    async def answer() -> Any:
        result = function(**arguments) if on_loop else await _in_thread(function, arguments)
        return await result if inspect.isawaitable(result) else result

    if timeout is None:
        return await answer()
    task = asyncio.ensure_future(answer())
    try:
        await asyncio.wait({task}, timeout=timeout)
        if not task.done():
            raise NoAnswerError
        return task.result()
    finally:
        task.cancel()


def _in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> asyncio.Future[Any]:
    """Run the function on a daemon thread of its own (asyncio.to_thread has few threads and waits for them at exit)."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():  # given up in the meantime
            setter(value)

    def run() -> None:
        try:
            outcome = (future.set_result, function(**arguments))
        except Exception as error:  # noqa: BLE001  whatever the function raises is its caller's to judge
            outcome = (future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended while the function ran
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="reward-function", daemon=True).start()
    return future
