"""ReplayBufferAsync: generation runs ahead of training; groups may be older than the weights.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, ReplayBufferAsync. Stale, constant and failed groups are evicted once
each, and exactly as many prompts are submitted anew. Sampling never waits for what is in flight, unless the strategy
is "wait" and some prompt in flight has reached the threshold.
"""

from __future__ import annotations

from typing import Any

from kitlib.replay_buffer.buffer import ReplayBuffer
from kitlib.replay_buffer.evictions import EvictionMetrics, Evictions
from kitlib.replay_buffer.prompts import PartitionView, staleness
from kitlib.transfer_queue import KVBatchMeta


class ReplayBufferAsync(ReplayBuffer):
    """The sampler of colocate_async and separate_async; arguments as in ReplayBuffer."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """As ReplayBuffer.sample, evicting and replacing what is stale, constant or failed meanwhile."""
        view, metrics = self._wait_until_sampleable(global_steps, partition_id, batch_size)
        return self._materialize(view, view.oldest(batch_size)), metrics

    def wait_for_sampleable(
        self, global_steps: int, partition_id: str, target_count: int
    ) -> tuple[set[str], dict[str, Any]]:
        """Wait until `target_count` groups could be sampled; returns their uids, and the eviction metrics meanwhile."""
        view, metrics = self._wait_until_sampleable(global_steps, partition_id, target_count)
        return set(view.terminal), metrics

    def get_sampleable_count(self, global_steps: int, partition_id: str) -> int:
        """Groups that could be sampled now. Changes nothing."""
        view = self.view(partition_id)
        return len(view.terminal.keys() - self.evictions(global_steps, view).uids)

    def evictions(self, global_steps: int, view: PartitionView) -> Evictions:
        if view.partition_id == "val":
            return Evictions()
        failed = frozenset(view.prompts["failure"])
        return Evictions(self._stale(global_steps, view), self._constant_groups(view), failed)

    def _stale(self, global_steps: int, view: PartitionView) -> dict[str, int]:
        limit = self.max_off_policy_threshold
        if limit is None or self.max_off_policy_strategy != "drop":
            return {}
        spans = {uid: staleness(global_steps, step) for uid, step in view.prompts["finished"].items()}
        return {uid: span for uid, span in spans.items() if span > limit}

    def held_back_by(self, global_steps: int, view: PartitionView) -> list[str]:
        """Prompts in flight that the strategy "wait" waits for before anything is sampled."""
        limit = self.max_off_policy_threshold
        if limit is None or self.max_off_policy_strategy != "wait":
            return []
        return [uid for uid, step in view.in_flight.items() if staleness(global_steps, step) >= limit]

    def _wait_until_sampleable(
        self, global_steps: int, partition_id: str, num_groups: int
    ) -> tuple[PartitionView, dict[str, Any]]:
        metrics = EvictionMetrics(partition_id)
        with self._wait_for(global_steps, partition_id, num_groups) as waiting:
            while True:
                view, evicted = self._look_and_evict(global_steps, partition_id, metrics)
                if evicted.uids:
                    self._refill(len(evicted.uids))
                    continue
                if len(view.terminal) >= num_groups and not self.held_back_by(global_steps, view):
                    return view, metrics.result()
                waiting.wait()

    def _check_mode_arguments(self) -> None:
        """The settings of sync filtering do not apply here."""
