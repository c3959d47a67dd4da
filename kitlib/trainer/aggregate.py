"""One set of metrics from the updates between two weight syncs.

verl 0.9.1: trainer/ppo/v1/utils.py, MetricsAggregator. The name of a metric decides how its values are joined:

    counts of evictions, times, "sum", "total"         added up
    "max", "min"                                       the largest, the smallest
    learning rates, global_step                        the last
    everything else                                    mean, weighted by the real rows of each update
    off_policy/evicted_samples_staleness/mean          mean, weighted by the evictions it is the mean of
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_COUNTS = ("/evicted_samples", "/discarded_surplus_samples")
_LAST = ("training/global_step", "training/rollout_probs_diff_valid")
_STALENESS_MEAN = "_staleness/mean"


def aggregate(updates: Sequence[tuple[Mapping[str, Any], int]]) -> dict[str, Any]:
    """Join (metrics, number of real rows) of several updates; one update comes back as it is."""
    if len(updates) == 1:
        return dict(updates[0][0])
    names = dict.fromkeys(name for metrics, _ in updates for name in metrics)
    joined = {name: _join(name, updates) for name in names}
    if {"global_seqlen/max", "global_seqlen/min", "global_seqlen/minmax_diff"} <= joined.keys():
        joined["global_seqlen/minmax_diff"] = joined["global_seqlen/max"] - joined["global_seqlen/min"]
    return joined


def _join(name: str, updates: Sequence[tuple[Mapping[str, Any], int]]) -> Any:
    having = [(metrics, num_rows) for metrics, num_rows in updates if name in metrics]
    values = [metrics[name] for metrics, _ in having]
    if isinstance(values[0], dict):
        return dict(sum((Counter(value) for value in values), Counter()))
    reduce = _reduction(name)
    if reduce is not None:
        return reduce(values)
    weights = [_weight(name, metrics, num_rows) for metrics, num_rows in having]
    total = sum(weights)
    if total == 0:
        return sum(values) / len(values)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total


def _reduction(name: str) -> Callable[[Sequence[float]], float] | None:
    """How values of this name are joined; None: by a weighted mean."""
    lower = name.lower()
    if lower.endswith(_COUNTS) or lower.startswith(("timing_s/", "timing_per_token_ms/")):
        return sum
    if name in _LAST or lower.endswith(("/lr", "_lr")):
        return lambda values: values[-1]
    for word, reduce in (("max", max), ("min", min), ("sum", sum), ("total", sum)):
        if word in lower:
            return reduce
    return None


def _weight(name: str, metrics: Mapping[str, Any], num_rows: int) -> float:
    if name.endswith(_STALENESS_MEAN):
        return metrics.get(name.removesuffix(_STALENESS_MEAN), num_rows)
    return num_rows
