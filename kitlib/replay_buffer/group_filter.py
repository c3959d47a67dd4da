"""Groups without a signal: all trajectories have the same score, so GRPO gives every one advantage zero.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, ReplayBuffer._dapo_filtered_keys. The rule is dynamic sampling of DAPO
(Yu et al. 2025, arXiv:2503.14476, section 3.2).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kitlib.keys import uid_of
from kitlib.replay_buffer.errors import SampleError
from kitlib.replay_buffer.prompts import PartitionView
from kitlib.transfer_queue import QueueProtocol

CANONICAL_REWARD = "reward"


class GroupFilter:
    """Tells which finished groups are constant in `metric`. A finished group never changes, so each is read once.

    metric: "reward" sums `rm_scores`; another name reads extra_fields["reward_extra_info"][name].
    """

    def __init__(self, tq: QueueProtocol, metric: str) -> None:
        self.tq = tq
        self.metric = metric
        self._constant: dict[
            str, dict[str, float | None]
        ] = {}  # partition -> uid -> the shared value, None if it varies

    def constant_groups(self, view: PartitionView) -> dict[str, float]:
        """{uid: shared value} of the finished groups to filter. A group of one is kept: nothing says that it is
        constant.

        Raises SampleError naming finished groups that lack the metric on some row.
        """
        known = self._constant.setdefault(view.partition_id, {})
        finished = view.prompts["finished"]
        for uid in known.keys() - finished.keys():
            del known[uid]
        fresh = finished.keys() - known.keys()
        if fresh:
            known.update(self._classify(view, fresh))
        return {uid: value for uid, value in known.items() if value is not None}

    def _classify(self, view: PartitionView, uids: set[str]) -> dict[str, float | None]:
        values: dict[str, list[float]] = {uid: [] for uid in uids}
        keys = view.keys_of(uids)
        lacking = uids - {uid_of(key) for key in keys}
        for key, value in zip(keys, self._read(view.partition_id, keys), strict=True):
            if value is None:
                lacking.add(uid_of(key))
            else:
                values[uid_of(key)].append(value)
        if lacking:
            raise SampleError(
                f"algorithm.filter_groups.metric={self.metric}: the finished groups {', '.join(sorted(lacking)[:5])} "
                "lack it on some row; the reward function has to report it for every trajectory"
            )
        return {uid: group[0] if len(group) > 1 and len(set(group)) == 1 else None for uid, group in values.items()}

    def _read(self, partition_id: str, keys: list[str]) -> list[float | None]:
        """The metric of each row, None where it is missing."""
        if not keys:
            return []
        field = "rm_scores" if self.metric == CANONICAL_REWARD else "extra_fields"
        data = self.tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=[field])
        if field not in data:
            return [None] * len(keys)
        if field == "rm_scores":
            return [float(scores.sum()) for scores in data[field].unbind()]
        return [self._extra(extra) for extra in data.get(field).tolist()]

    def _extra(self, extra_fields: Any) -> float | None:
        info = extra_fields.get("reward_extra_info", {}) if isinstance(extra_fields, dict) else {}
        return float(info[self.metric]) if self.metric in info else None


def value_counts(constant: dict[str, float]) -> Counter[float]:
    """How many filtered groups collapsed to each value: all wrong, all right, ..."""
    return Counter(constant.values())
