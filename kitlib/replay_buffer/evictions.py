"""Groups that will not be trained on, why, and the metrics that say so.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, _terminal_eviction_reasons, _evict_terminal_groups and
_accumulate_eviction_metrics.

    reason      who                                            metric
    stale       async, strategy drop                           off_policy/evicted_samples, and its staleness
    constant    algorithm.filter_groups (DAPO)                 filter_groups/evicted_samples
    failed      async, or sync with sync_refill_failed_groups  rollout_failure/evicted_samples

A group with two reasons is evicted once and counted under both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# Not a number but {shared value: groups}; loggers take it out before they log.
FILTERED_REWARD_COUNTS = "_dapo_filtered_reward_counts"


def metrics_prefix(partition_id: str) -> str:
    """First part of the metric names of a partition."""
    return "training" if partition_id == "train" else "validation"


@dataclass(frozen=True)
class Evictions:
    """What one look finds to evict."""

    stale: dict[str, int] = field(default_factory=dict)  # uid -> weight versions spanned
    constant: dict[str, float] = field(default_factory=dict)  # uid -> the value that all its rows share
    failed: frozenset[str] = frozenset()

    @property
    def uids(self) -> set[str]:
        return {*self.stale, *self.constant, *self.failed}


class EvictionMetrics:
    """Adds up the evictions of one `sample` call, over all its looks."""

    def __init__(self, partition_id: str) -> None:
        self._prefix = metrics_prefix(partition_id)
        self._spans: list[int] = []
        self._values: Counter[float] = Counter()
        self._counts: Counter[str] = Counter()

    def add(self, evictions: Evictions) -> None:
        """Take in the evictions of one look."""
        self._spans += evictions.stale.values()
        self._values.update(evictions.constant.values())
        self._counts["filter_groups/evicted_samples"] += len(evictions.constant)
        self._counts["rollout_failure/evicted_samples"] += len(evictions.failed)

    def add_surplus(self, num_groups: int) -> None:
        """Groups that were good but one too many (sync group filtering keeps no buffer)."""
        self._counts["filter_groups/discarded_surplus_samples"] += num_groups

    def result(self) -> dict[str, Any]:
        """The metrics; a name appears only if something was counted under it."""
        metrics: dict[str, Any] = {f"{self._prefix}/{name}": count for name, count in self._counts.items() if count}
        if self._spans:
            name = f"{self._prefix}/off_policy/evicted_samples"
            metrics[name] = len(self._spans)
            metrics[f"{name}_staleness/mean"] = sum(self._spans) / len(self._spans)
            metrics[f"{name}_staleness/max"] = max(self._spans)
            metrics[f"{name}_staleness/min"] = min(self._spans)
        if self._values:
            metrics[FILTERED_REWARD_COUNTS] = dict(self._values)
        return metrics
