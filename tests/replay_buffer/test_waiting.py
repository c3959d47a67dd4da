"""What a wait says about itself, and how a wait that cannot end is ended."""

from __future__ import annotations

import threading

import pytest

from kitlib.replay_buffer import ReplayBuffer, SampleError, WaitReport
from tests.replay_buffer.conftest import Board


def ask_while_waiting(buffer: ReplayBuffer, batch_size: int) -> tuple[WaitReport, threading.Thread]:
    """Start a sample in a thread and ask it why it waits."""
    thread = threading.Thread(target=lambda: buffer.sample(5, "train", batch_size), daemon=True)
    thread.start()
    report = None
    while report is None:
        report = buffer.why_waiting()
    return report, thread


def test_why_waiting_names_the_blocking_prompt_and_what_it_has(board: Board) -> None:
    board.group("done", step=5)
    board.rows("u64", scores=(1.0, 0.0, 1.0))
    board.marker("u64", "running", step=4, num_sessions=4)
    buffer = ReplayBuffer(board.tq, live_uids=lambda: {"u64"})
    assert buffer.why_waiting() is None
    report, thread = ask_while_waiting(buffer, 2)
    assert report.can_end
    text = str(report)
    assert "sample(train, 2 prompts) at step 5: 1 of 2 ready" in text
    assert "u64 running, 3 of 4 sessions have a row, submitted 1 step ago" in text
    assert "slow" in text
    board.marker("u64", "finished", step=4)
    thread.join(timeout=100)
    assert buffer.why_waiting() is None


def test_a_prompt_whose_task_is_gone_never_ends(board: Board) -> None:
    board.rows("u64", scores=(1.0, 0.0))
    board.marker("u64", "running", step=5, num_sessions=2)
    buffer = ReplayBuffer(board.tq, live_uids=set, give_up_after=0.05)
    with pytest.raises(SampleError) as caught:
        buffer.sample(5, "train", 1)
    assert "the work is done, only the status update to finished is missing" in str(caught.value)
    assert "no task of u64 is running any more" in str(caught.value)
    assert "u64" in board.keys()


def test_a_task_that_ends_or_begins_during_the_look_is_not_taken_for_dead(board: Board) -> None:
    board.marker("u64", "running", step=5)
    answers = iter([{"u64"}, set(), set(), {"u64"}])  # two looks, each asked before and after
    buffer = ReplayBuffer(board.tq, live_uids=lambda: next(answers))
    with buffer._wait_for(5, "train", 1):
        for _ in range(2):
            report = buffer.why_waiting()
            assert report is not None and report.can_end


def test_too_few_prompts_in_flight_never_end(board: Board) -> None:
    board.marker("u1", "pending", step=5)
    with pytest.raises(SampleError, match="3 more prompts are needed and 1 are in flight. Submit 2 more prompts"):
        ReplayBuffer(board.tq, give_up_after=0.05).sample(5, "train", 3)


def test_a_slow_prompt_is_waited_for_beyond_the_limit(board: Board) -> None:
    board.marker("u1", "running", step=5)
    timer = threading.Timer(0.3, lambda: (board.rows("u1"), board.marker("u1", "finished", step=5)))
    timer.start()
    batch, _ = ReplayBuffer(board.tq, live_uids=lambda: {"u1"}, give_up_after=0.05).sample(5, "train", 1)
    assert len(batch) == 2
