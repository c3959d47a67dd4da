"""The ledger: it knows every task from its start to its end, and does not forget how it ended."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from kitlib.agent_loop import AgentLoopError, TaskLedger
from kitlib.agent_loop.ledger import MAX_FAILURES_KEPT
from kitlib.errors import KitError


async def fail(error: Exception) -> None:
    raise error


def test_a_task_is_listed_while_it_runs() -> None:
    ledger = TaskLedger()

    async def go() -> None:
        gate = asyncio.Event()
        task = ledger.spawn(gate.wait(), name="session", uid="u", session_id=3)
        (record,) = ledger.running()
        assert (record.name, record.uid, record.session_id, record.state) == ("session", "u", 3, "running")
        assert record.seconds is None
        gate.set()
        await task
        assert ledger.running() == ()
        assert record.state == "finished"
        assert record.seconds is not None

    asyncio.run(go())
    assert ledger.failures() == ()


def test_a_failed_session_is_kept_and_not_fatal_a_failed_prompt_is() -> None:
    ledger = TaskLedger()

    async def go(name: str) -> None:
        task = ledger.spawn(fail(ValueError("broken")), name=name, uid="u")  # type: ignore[arg-type]
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(go("session"))
    ledger.raise_if_failed()
    assert not ledger.failed_event.is_set()
    asyncio.run(go("prompt"))
    assert ledger.failed_event.is_set()
    with pytest.raises(AgentLoopError, match="prompt u: ValueError: broken") as caught:
        ledger.raise_if_failed()
    assert isinstance(caught.value.__cause__, ValueError)
    assert [str(record.exception) for record in ledger.failures()] == ["broken", "broken"]


def test_the_first_fatal_error_counts_and_ours_are_raised_as_they_are() -> None:
    ledger = TaskLedger()
    ledger.declare_fatal(KitError("a sentence"), "somewhere")
    ledger.declare_fatal(RuntimeError("a consequence"), "elsewhere")
    with pytest.raises(KitError, match="^a sentence$"):
        ledger.raise_if_failed()


def test_cancel_all_means_the_tasks_of_this_loop() -> None:
    ledger = TaskLedger()
    started, stop = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        task = ledger.spawn(asyncio.sleep(3600), name="session", uid="other")
        started.set()
        while not stop.is_set():
            await asyncio.sleep(0.002)
        assert not task.done()
        await ledger.cancel_all()
        assert task.cancelled()

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    thread.start()
    assert started.wait(100)

    async def here() -> None:
        ledger.spawn(asyncio.sleep(3600), name="session", uid="mine")
        await asyncio.sleep(0)
        await ledger.cancel_all()

    asyncio.run(here())
    assert [record.uid for record in ledger.running()] == ["other"]
    stop.set()
    thread.join(100)
    assert ledger.running() == ()
    assert ledger.failures() == ()


def test_who_hears_that_a_task_is_done_finds_it_ended() -> None:
    """However long the thread of the task stops between its last word and its end."""
    ledger, said, asked = TaskLedger(), threading.Event(), threading.Event()

    async def prompt() -> None:
        ledger.mark_ending()
        (record,) = ledger.running()  # its own thread does not wait for itself
        assert record.state == "ending"
        said.set()
        asked.wait(60)
        time.sleep(0.05)

    async def go() -> None:
        await ledger.spawn(prompt(), name="prompt", uid="u")

    thread = threading.Thread(target=asyncio.run, args=(go(),))
    thread.start()
    assert said.wait(60)
    asked.set()

    async def in_a_notebook() -> None:  # whose cells run on an event loop of their own
        assert ledger.running() == ()

    asyncio.run(in_a_notebook())
    thread.join()
    ledger.raise_if_failed()


def test_memory_of_failures_is_bounded() -> None:
    ledger = TaskLedger()

    async def go() -> None:
        tasks = [ledger.spawn(fail(ValueError(str(i))), name="session", uid="u") for i in range(MAX_FAILURES_KEPT + 5)]
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(go())
    assert len(ledger.failures()) == MAX_FAILURES_KEPT
    assert str(ledger.failures()[-1].exception) == str(MAX_FAILURES_KEPT + 4)
