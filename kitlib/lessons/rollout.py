"""Let a lesson look at the queue at rest: after the agent loop has ended, before the sampler takes anything.

The trainer does not need this, `sample` waits by itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kitlib.inspector.render.wording import count
from kitlib.lessons.expect import LessonError

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer

POLL_SECONDS = 0.02


def wait_for_rollout(trainer: PPOTrainer, partition_id: str = "train", timeout: float = 60.0) -> str:
    """Wait until no prompt of the partition is pending or running; returns how many prompts have which status.

    Takes nothing out of the queue. Raises what a background task has died of, and LessonError after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        trainer.agent_loop_manager.ledger.raise_if_failed()
        view = trainer.replay_buffer.view(partition_id)
        if not view.num_in_flight:
            return view.counts()
        if time.monotonic() > deadline:
            waiting = count(view.num_in_flight, "prompt")
            raise LessonError(f"{waiting} still in flight after {timeout:g} s: {view.counts()}")
        time.sleep(POLL_SECONDS)
