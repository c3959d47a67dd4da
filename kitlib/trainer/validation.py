"""Validation: the same path as training, in the partition `val`, with greedy sampling by default.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._validate and _val_metrics_update, and
trainer/ppo/metric_utils.py, process_validation_metrics. Per data source and variable: mean@n over the n sessions of
each prompt, averaged over the prompts; with several sessions also std@n, and best@k, worst@k and maj@k by bootstrap.
The core metric of a data source (`acc` if its reward function gives one, else `reward`) goes under val-core/,
everything else under val-aux/.

A session that never stored a row counts as acc 0 (`acc_success_only` leaves it out), so a crash cannot look like
progress."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kitlib.keys import TrajectoryKey

NUM_BOOTSTRAP = 1000
SEED = 42


@dataclass
class ValidationRows:
    """What validation keeps of each session: its last output."""

    data_sources: list[str] = field(default_factory=list)
    uids: list[str] = field(default_factory=list)
    num_turns: list[int] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)  # {"reward": score, "acc": ..., ...} a session
    expected: dict[tuple[str, str], int] = field(default_factory=dict)  # (data source, uid) -> sessions asked for


def final_rows(keys: Sequence[str]) -> list[int]:
    """Positions of the last output of each session, in the order of `keys`."""
    last: dict[tuple[str, int], tuple[int, int]] = {}
    for position, key in enumerate(keys):
        parsed = TrajectoryKey.parse(key)
        session = (parsed.uid, parsed.session_id)
        last[session] = max(last.get(session, (-1, -1)), (parsed.index, position))
    return sorted(position for _, position in last.values())


def validation_metrics(rows: ValidationRows) -> dict[str, float]:
    """val-core/* and val-aux/* of a validation."""
    metrics: dict[str, float] = {}
    for source, variables in _group(rows).items():
        core = "acc" if "acc" in variables else "reward"
        for variable, values_by_uid in variables.items():
            statistics = _mean_over_prompts(variable, values_by_uid, variables.get("pred", {}))
            largest = max((_count_of(name) for name in statistics), default=0)
            for name, value in statistics.items():
                is_core = variable == core and name.startswith(("mean", "maj", "best")) and f"@{largest}" in name
                metrics[f"{'val-core' if is_core else 'val-aux'}/{source}/{variable}/{name}"] = value
    if rows.num_turns:
        turns = np.array(rows.num_turns)
        metrics |= {f"val-aux/num_turns/{name}": float(getattr(turns, name)()) for name in ("min", "max", "mean")}
    return metrics


def _count_of(statistic: str) -> int:
    """The n of "best@n/mean" or "mean@n"."""
    return int(statistic.split("@")[-1].split("/")[0])


def _group(rows: ValidationRows) -> dict[str, dict[str, dict[str, list[Any]]]]:
    """data source -> variable -> uid -> its values, lost sessions filled in for `acc`."""
    grouped: dict[str, dict[str, dict[str, list[Any]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for source, uid, info in zip(rows.data_sources, rows.uids, rows.infos, strict=True):
        for name, value in info.items():
            if value is not None:
                grouped[source][name][uid].append(value)
    for (source, uid), count in rows.expected.items():
        if "acc" in grouped[source]:
            seen = grouped[source]["acc"][uid]
            grouped[source]["acc_success_only"][uid] = list(seen)
            seen.extend([0.0] * (count - len(seen)))
    return grouped


def _mean_over_prompts(
    variable: str, values_by_uid: Mapping[str, list[Any]], predictions: Mapping[str, list[Any]]
) -> dict[str, float]:
    collected: dict[str, list[float]] = defaultdict(list)
    for uid, values in values_by_uid.items():
        numbers = [float(value) for value in values if isinstance(value, int | float | np.number)]
        if numbers:  # a reward function may also report text, in some sessions or in all
            for name, value in _prompt_statistics(numbers, predictions.get(uid, [])).items():
                collected[name].append(value)
    return {name: float(np.mean(values)) for name, values in collected.items()}


def _prompt_statistics(values: list[float], predictions: list[Any]) -> dict[str, float]:
    """Statistics of one prompt's n sessions."""
    n = len(values)
    statistics = {f"mean@{n}": float(np.mean(values))}
    if n == 1:
        return statistics
    statistics[f"std@{n}"] = float(np.std(values))
    array = np.array(values, dtype=float)
    for k in [*(2**i for i in range(1, n.bit_length()) if 2**i < n), n]:
        reductions: dict[str, Callable[[np.ndarray], float]] = {
            "best": lambda rows: array[rows].max(),
            "worst": lambda rows: array[rows].min(),
        }
        if len(predictions) == n:
            reductions["maj"] = lambda rows: _majority(array[rows], [predictions[row] for row in rows])
        picks = np.random.RandomState(SEED).choice(n, size=(NUM_BOOTSTRAP, k), replace=True)
        for name, reduce in reductions.items():
            drawn = [reduce(rows) for rows in picks]
            statistics[f"{name}@{k}/mean"], statistics[f"{name}@{k}/std"] = float(np.mean(drawn)), float(np.std(drawn))
    return statistics


def _majority(values: np.ndarray, predictions: list[Any]) -> float:
    """Value of the first row whose prediction is the most frequent one."""
    winner = max(predictions, key=predictions.count)
    return float(values[predictions.index(winner)])
