"""`wait_for_rollout` takes nothing, ends when the prompts have settled, and says why when it cannot."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kitlib.agent_loop.ledger import TaskLedger
from kitlib.lessons import LessonError, wait_for_rollout
from kitlib.transfer_queue import TransferQueue


@pytest.fixture
def trainer(tq: TransferQueue) -> Any:
    """What the function needs of a trainer: a queue with one running prompt, and a ledger."""
    tq.kv_put("u1", "train", tag={"is_prompt": True, "status": "running", "global_steps": 1})
    return SimpleNamespace(tq=tq, agent_loop_manager=SimpleNamespace(ledger=TaskLedger()))


def test_it_ends_when_the_prompt_has_settled(trainer: Any) -> None:
    timer = threading.Timer(0.05, lambda: trainer.tq.kv_put("u1", "train", tag={"status": "finished"}))
    timer.start()
    assert wait_for_rollout(trainer) == "prompts: 1 finished"
    timer.join()
    assert list(trainer.tq.kv_list("train")["train"]) == ["u1"]


def test_a_prompt_that_never_settles(trainer: Any) -> None:
    with pytest.raises(LessonError, match="1 prompt still in flight after 0.05 s: 1 running"):
        wait_for_rollout(trainer, timeout=0.05)


def test_a_dead_background_task_ends_the_wait(trainer: Any) -> None:
    trainer.agent_loop_manager.ledger.declare_fatal(RuntimeError("boom"), "session 0")
    with pytest.raises(Exception, match="boom"):
        wait_for_rollout(trainer)
