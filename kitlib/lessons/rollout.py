"""Let a lesson look at the queue at rest: after the agent loop has ended, before the sampler takes anything.

The trainer does not need this, `sample` waits by itself.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from kitlib.inspector.render.wording import count
from kitlib.lessons.expect import LessonError

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer

POLL_SECONDS = 0.02


def wait_for_rollout(trainer: PPOTrainer, partition_id: str = "train", timeout: float = 120.0) -> str:
    """Wait until no prompt of the partition is pending or running; returns how many prompts have which status.

    Takes nothing out of the queue. Raises what a background task has died of, and LessonError after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        trainer.agent_loop_manager.ledger.raise_if_failed()
        tags = trainer.tq.kv_list(partition_id).get(partition_id, {}).values()
        statuses = Counter(tag["status"] for tag in tags if tag.get("is_prompt"))
        said = ", ".join(f"{number} {status}" for status, number in statuses.items())
        num_in_flight = statuses["pending"] + statuses["running"]
        if not num_in_flight:
            return f"prompts: {said or 'none'}"
        if time.monotonic() > deadline:
            raise LessonError(f"{count(num_in_flight, 'prompt')} still in flight after {timeout:g} s: {said}")
        time.sleep(POLL_SECONDS)
