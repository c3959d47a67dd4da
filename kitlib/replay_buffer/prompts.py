"""One look at a partition: prompts by status, and the rows of each.

A prompt marker walks through four statuses; the agent loop writes them, the sampler only reads:

    pending ──> running ──> finished      all sessions have settled, their rows are in the queue
                       └──> failure       all sessions have settled, at least one of them raised
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kitlib.keys import uid_of
from kitlib.replay_buffer.errors import MarkerTagError, UnknownStatusError

STATUSES = ("pending", "running", "finished", "failure")


@dataclass
class PartitionView:
    """Prompts by status with the step that submitted them, and trajectory rows with their tags."""

    partition_id: str
    prompts: dict[str, dict[str, int]] = field(default_factory=lambda: {status: {} for status in STATUSES})
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # key -> tag, in order of first write
    expected_sessions: dict[str, int] = field(default_factory=dict)  # uid -> sessions its marker promises, if it does

    @classmethod
    def of(cls, partition_id: str, tags: Mapping[str, dict[str, Any]]) -> PartitionView:
        """Sort the `{key: tag}` of kv_list into markers and rows. Raises UnknownStatusError and MarkerTagError."""
        view = cls(partition_id)
        for key, tag in tags.items():
            if not tag.get("is_prompt", False):
                view.rows[key] = tag
                continue
            for name in ("status", "global_steps"):
                if name not in tag:
                    raise MarkerTagError(
                        f"prompt {key} in partition {partition_id!r} has no tag {name!r} (it has {sorted(tag)}); "
                        "submit_batch_to_rollout writes it"
                    )
            if tag["status"] not in STATUSES:
                raise UnknownStatusError(
                    f"prompt {key} in partition {partition_id!r} has the unknown status {tag['status']!r}; expected "
                    f"one of {', '.join(STATUSES)}"
                )
            view.prompts[tag["status"]][key] = tag["global_steps"]
            if "num_sessions" in tag:
                view.expected_sessions[key] = tag["num_sessions"]
        return view

    @property
    def terminal(self) -> dict[str, int]:
        """Prompts whose sessions have all settled: {uid: global_steps}."""
        return self.prompts["finished"] | self.prompts["failure"]

    @property
    def in_flight(self) -> dict[str, int]:
        """Prompts that may still get rows: {uid: global_steps}."""
        return self.prompts["pending"] | self.prompts["running"]

    def keys_of(self, uids: Iterable[str]) -> list[str]:
        """Keys of the rows of these prompts, in order of first write."""
        wanted = set(uids)
        return [key for key in self.rows if uid_of(key) in wanted]

    def remove(self, uids: Iterable[str]) -> list[str]:
        """Forget prompts and their rows; returns the keys that have to leave the queue."""
        uids = list(uids)
        keys = self.keys_of(uids)
        for key in keys:
            del self.rows[key]
        for members in self.prompts.values():
            for uid in uids:
                members.pop(uid, None)
        return [*uids, *keys]

    def counts(self) -> str:
        """pending 0, running 1, finished 63, failure 0"""
        return ", ".join(f"{status} {len(self.prompts[status])}" for status in STATUSES)


def staleness(global_steps: int, submitted_at: int) -> int:
    """Weight versions that a prompt submitted at one step and trained at another spans; 1 on policy.

    verl counts from the step on the marker, not from the weights that generated the rows.
    """
    return global_steps - submitted_at + 1
