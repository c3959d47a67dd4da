"""The replay buffer: which finished groups become the next batch.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, ReplayBuffer. It holds no data. It reads keys and tags from the queue and
answers with a `KVBatchMeta`: the names of the rows that the trainer shall use.

A prompt marker walks through four statuses; the agent loop writes them, the buffer only reads:

    pending ──> running ──> finished      all sessions have settled, their rows are in the queue
                       └──> failure       all sessions have settled, at least one of them raised

`sample(batch_size=k)` waits until k prompts are finished or failed, takes the k oldest (smallest `global_steps` on
the marker), clears their markers, and returns every trajectory row of these prompts in the order in which the rows
were first written.

Differs from verl: it wakes up when the queue changes instead of polling every two seconds, it ends the wait with the
original exception when a background task has died, and with an explanation when nothing is in flight that could still
finish. Left out so far: group filtering (DAPO), refill of failed groups, staleness."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kitlib.errors import KitError
from kitlib.keys import uid_of
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol

logger = logging.getLogger(__name__)

STATUSES = ("pending", "running", "finished", "failure")


class SampleError(KitError, RuntimeError):
    """`sample` cannot give a batch, now or ever; the message says why."""


@dataclass
class PartitionView:
    """One look at a partition: prompts by status, and the trajectory rows."""

    prompts: dict[str, dict[str, int]] = field(default_factory=lambda: {status: {} for status in STATUSES})
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # key -> tag, in order of first write

    @classmethod
    def of(cls, tags: dict[str, dict[str, Any]]) -> PartitionView:
        """Sort the `{key: tag}` of `kv_list` into markers and rows."""
        view = cls()
        for key, tag in tags.items():
            if not tag.get("is_prompt", False):
                view.rows[key] = tag
            elif tag["status"] not in STATUSES:
                raise ValueError(f"prompt {key} has the unknown status {tag['status']!r}; expected one of {STATUSES}")
            else:
                view.prompts[tag["status"]][key] = tag["global_steps"]
        return view

    @property
    def terminal(self) -> dict[str, int]:
        """Prompts whose sessions have all settled: {uid: global_steps}."""
        return self.prompts["finished"] | self.prompts["failure"]

    @property
    def num_in_flight(self) -> int:
        return len(self.prompts["pending"]) + len(self.prompts["running"])

    def counts(self) -> str:
        return ", ".join(f"{status} {len(self.prompts[status])}" for status in STATUSES)


class ReplayBuffer:
    """Samples whole groups, synchronously: what was submitted for this step is waited for.

    Args:
        tq: the queue.
        trainer_mode: name of the trainer, for messages.
        poll_interval: seconds; the longest time between two looks at the queue if no change is signalled.
        raise_if_failed: called at every look; raises when a background task of the rollout has died.
        give_up_after: seconds without any change of the queue, with nothing in flight, after which waiting is an error.
    """

    def __init__(
        self,
        tq: QueueProtocol,
        trainer_mode: str = "sync",
        poll_interval: float = 2.0,
        raise_if_failed: Callable[[], None] | None = None,
        give_up_after: float = 10.0,
    ) -> None:
        self.tq = tq
        self.trainer_mode = trainer_mode
        self.poll_interval = poll_interval
        self.raise_if_failed = raise_if_failed or (lambda: None)
        self.give_up_after = give_up_after

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """Wait for `batch_size` settled prompts of a partition and take the oldest.

        Args:
            global_steps: the trainer's current step.
            partition_id: "train" or "val".
            batch_size: number of prompts (groups), not of rows.

        Returns:
            The handle of all their rows (`fields=None`), and metrics.

        Raises:
            SampleError: the chosen prompts have no row at all, or nothing in flight could still complete the batch.
        """
        view = self._wait_until_enough(partition_id, batch_size)
        uids = sorted(view.terminal, key=view.terminal.__getitem__)[:batch_size]
        return self._materialize(partition_id, uids, view), {}

    def view(self, partition_id: str) -> PartitionView:
        """Prompts and rows of a partition as they are now."""
        return PartitionView.of(self.tq.kv_list(partition_id).get(partition_id, {}))

    def _wait_until_enough(self, partition_id: str, batch_size: int) -> PartitionView:
        version, last_change = 0, time.monotonic()
        while True:
            self.raise_if_failed()
            view = self.view(partition_id)
            if len(view.terminal) >= batch_size:
                return view
            if view.num_in_flight == 0 and time.monotonic() - last_change > self.give_up_after:
                raise SampleError(
                    f"sample({partition_id}, {batch_size} prompts) can never end: {view.counts()}, and nothing is in "
                    f"flight. Submit {batch_size - len(view.terminal)} more prompts or sample fewer."
                )
            seen = version
            version = self._wait_for_change(seen, min(self.poll_interval, self.give_up_after))
            if version != seen:
                last_change = time.monotonic()

    def _wait_for_change(self, since: int, timeout: float) -> int:
        """Sleep until the queue changes; a store that cannot say so is looked at once per `timeout`."""
        if hasattr(self.tq, "wait_for_change"):
            return self.tq.wait_for_change(since=since, timeout=timeout)
        time.sleep(timeout)
        return since

    def _materialize(self, partition_id: str, uids: list[str], view: PartitionView) -> KVBatchMeta:
        """Clear the markers and name the rows. The order of rows is the queue's, not that of the prompts."""
        chosen = set(uids)
        keys = [key for key in view.rows if uid_of(key) in chosen]
        if not keys:
            raise SampleError(
                f"the {len(uids)} prompts chosen from partition {partition_id!r} have no trajectory row "
                f"({view.counts()}; {len(view.rows)} other rows there): every session failed or stored nothing. "
                "The log of the agent loop has the exceptions."
            )
        self.tq.kv_clear(keys=uids, partition_id=partition_id)
        return KVBatchMeta(keys=keys, tags=[view.rows[key] for key in keys], partition_id=partition_id)
