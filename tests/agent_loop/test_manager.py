"""Threads, chunks and ends: what the manager owns, and what is left when it closes."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kitlib.agent_loop import AgentLoopError, AgentLoopManagerTQ
from kitlib.reward import RewardLoopWorker
from kitlib.transfer_queue import TransferQueue
from tests.agent_loop.fakes import TOKENIZER, FakeClient, batch_of, config, row


def manager(tq: TransferQueue, client: Any, num_workers: int = 1, *overrides: str) -> AgentLoopManagerTQ:
    settings = config(*overrides)
    return AgentLoopManagerTQ(settings, tq, client, TOKENIZER, [RewardLoopWorker(settings, TOKENIZER)], num_workers)


def wait_until(condition: Any, tq: TransferQueue, seconds: float = 100.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, tq.kv_list()
        tq.wait_for_change(tq.version, timeout=0.01)


def agent_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kitlib-agent-loop")]


def num_with_status(tq: TransferQueue, status: str) -> int:
    return sum(tag.get("status") == status for tag in tq.kv_list("train").get("train", {}).values())


class Gate:
    """A reply that waits until it is opened, from whichever loop."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waiting: list[str] = []  # the thread of each session that has come here
        self.cancelled: list[str] = []

    def __call__(self, prompt_ids: Any, params: Any) -> Any:
        return self._wait()

    async def _wait(self) -> str:
        self.waiting.append(threading.current_thread().name)
        try:
            while not self.opened.is_set():
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.cancelled.append(threading.current_thread().name)
            raise
        return "####708"


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_returns_at_once_and_every_prompt_is_run_by_some_worker(num_workers: int) -> None:
    tq, gate = TransferQueue(), Gate()
    with manager(tq, FakeClient(gate), num_workers) as agents:
        agents.generate_sequences(batch_of([row() for _ in range(3)], ["a", "b", "c"]))
        wait_until(lambda: len(gate.waiting) == 6, tq)
        assert num_with_status(tq, "running") == 3
        assert num_with_status(tq, "finished") == 0
        names = {str(record) for record in agents.ledger.running()}
        assert {"prompt a", "session a_0", "session c_1"} <= names
        gate.opened.set()
        wait_until(lambda: num_with_status(tq, "finished") == 3, tq)
        assert num_with_status(tq, "success") == 6


def test_two_workers_share_the_prompts() -> None:
    tq, gate = TransferQueue(), Gate()
    agents = manager(tq, FakeClient(gate), 2)
    agents.generate_sequences(batch_of([row(), row()], ["a", "b"]))
    wait_until(lambda: len(gate.waiting) == 4, tq)
    agents.close()
    assert sorted(gate.cancelled) == ["kitlib-agent-loop-0"] * 2 + ["kitlib-agent-loop-1"] * 2


def test_close_in_the_middle_ends_tasks_and_threads_and_writes_no_status() -> None:
    tq, gate = TransferQueue(), Gate()
    agents = manager(tq, FakeClient(gate), 2)
    agents.generate_sequences(batch_of([row(), row()], ["a", "b"]))
    wait_until(lambda: len(gate.waiting) == 4, tq)
    assert len(agent_threads()) == 2
    agents.close()
    assert agents.ledger.running() == ()
    assert agents.ledger.failures() == ()
    assert agent_threads() == []
    assert num_with_status(tq, "running") == 2
    agents.ledger.raise_if_failed()
    agents.close()
    with pytest.raises(AgentLoopError, match="closed AgentLoopManagerTQ"):
        agents.generate_sequences(batch_of([row()], ["c"]))


def test_a_fatal_error_surfaces_in_the_trainer_thread() -> None:
    tq = TransferQueue()
    with manager(tq, FakeClient(RuntimeError("out of memory"))) as agents:
        agents.generate_sequences(batch_of([row()], ["a"]))
        assert agents.ledger.failed_event.wait(100)
        for attempt in (agents.ledger.raise_if_failed, lambda: agents.generate_sequences(batch_of([row()], ["b"]))):
            with pytest.raises(AgentLoopError, match="the LLM server failed: RuntimeError: out of memory") as caught:
                attempt()
            assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_wrong_batch_raises_in_the_trainer_thread_and_starts_nothing() -> None:
    tq = TransferQueue()
    with manager(tq, FakeClient()) as agents:
        with pytest.raises(AgentLoopError, match="no agent loop is called 'dreamer'"):
            agents.generate_sequences(batch_of([row(agent_name="dreamer")], ["a"]))
        assert agents.ledger.running() == ()
        assert tq.kv_list() == {}


def test_a_task_that_ignores_cancellation_is_named(caplog: pytest.LogCaptureFixture) -> None:
    tq, release, begun = TransferQueue(), threading.Event(), []

    async def stubborn() -> str:
        begun.append(1)
        while not release.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                continue
        return "####708"

    agents = manager(tq, FakeClient(lambda prompt_ids, params: stubborn()))
    agents.generate_sequences(batch_of([row()], ["a"]))
    wait_until(lambda: len(begun) == 2, tq)  # a task that has not begun would be cancelled
    agents.close(timeout=0.05)
    assert re.search(r"kitlib-agent-loop-0 still runs after 0.1 s, busy with .*session a_0", caplog.text)
    release.set()
    wait_until(lambda: agent_threads() == [], tq)


def test_code_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    tq, release, begun = TransferQueue(), threading.Event(), threading.Event()

    def block(prompt_ids: Any, params: Any) -> str:
        begun.set()
        release.wait(100)
        return "####708"

    agents = manager(tq, FakeClient(block))
    agents.generate_sequences(batch_of([row()], ["a"]))
    assert begun.wait(100)
    agents.close(timeout=0.05)
    assert "kitlib-agent-loop-0 still runs" in caplog.text
    release.set()
    wait_until(lambda: agent_threads() == [], tq)
    assert agents.ledger.running() == ()


def test_threads_of_reward_functions_end_too(tmp_path: Path) -> None:
    path = tmp_path / "my_reward.py"
    path.write_text("def compute_score(**kwargs):\n    return 1.0\n")
    before = set(threading.enumerate())
    tq = TransferQueue()
    with manager(tq, FakeClient("####708"), 1, f"reward.custom_reward_function.path={path}") as agents:
        agents.generate_sequences(batch_of([row()], ["a"]))
        wait_until(lambda: num_with_status(tq, "finished") == 1, tq)
    wait_until(lambda: set(threading.enumerate()) <= before, tq)


def test_each_worker_has_a_tokenizer_of_its_own() -> None:
    with manager(TransferQueue(), FakeClient(), 2) as agents:
        first, second = (worker.tokenizer for worker in agents.workers)
        assert first is not second
        assert first.apply_chat_template(row()["raw_prompt"]) == second.apply_chat_template(row()["raw_prompt"])
