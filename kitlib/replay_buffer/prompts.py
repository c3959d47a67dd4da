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
    """Prompts by status with the step that submitted them, and trajectory rows with their tags.

    Kept up to date key by key: what `update` and `forget` cost does not depend on how many other keys there are.
    """

    partition_id: str
    prompts: dict[str, dict[str, int]] = field(default_factory=lambda: {status: {} for status in STATUSES})
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # key -> tag, in order of first write
    expected_sessions: dict[str, int] = field(default_factory=dict)  # uid -> sessions its marker promises, if it does
    _status: dict[str, str] = field(default_factory=dict)  # uid -> its entry in `prompts`
    _rows_of: dict[str, dict[str, None]] = field(default_factory=dict)  # uid -> keys of its rows
    _place: dict[str, int] = field(default_factory=dict)  # key -> number that grows in order of first write
    _num_seen: int = 0

    @classmethod
    def of(cls, partition_id: str, tags: Mapping[str, dict[str, Any]]) -> PartitionView:
        """Sort the `{key: tag}` of kv_list into markers and rows. Raises UnknownStatusError and MarkerTagError."""
        view = cls(partition_id)
        view.update(tags)
        return view

    def update(self, tags: Mapping[str, dict[str, Any]]) -> None:
        """Take in new keys, in order of first write, and new tags of known keys. Raises as `of`."""
        for key, tag in tags.items():
            is_prompt = tag.get("is_prompt", False)
            if is_prompt or key not in self.rows:
                self._withdraw(key)
            if key not in self._place:
                self._place[key] = self._num_seen
                self._num_seen += 1
            if is_prompt:
                self._add_marker(key, tag)
            else:
                self.rows[key] = tag
                self._rows_of.setdefault(uid_of(key), {})[key] = None

    def forget(self, keys: Iterable[str]) -> None:
        """Keys that have left the queue; unknown ones are skipped."""
        for key in keys:
            self._withdraw(key)
            self._place.pop(key, None)

    def _add_marker(self, uid: str, tag: dict[str, Any]) -> None:
        for name in ("status", "global_steps"):
            if name not in tag:
                raise MarkerTagError(
                    f"prompt {uid} in partition {self.partition_id!r} has no tag {name!r} (it has {sorted(tag)}); "
                    "submit_batch_to_rollout writes it"
                )
        if tag["status"] not in STATUSES:
            raise UnknownStatusError(
                f"prompt {uid} in partition {self.partition_id!r} has the unknown status {tag['status']!r}; expected "
                f"one of {', '.join(STATUSES)}"
            )
        self._status[uid] = tag["status"]
        self.prompts[tag["status"]][uid] = tag["global_steps"]
        if "num_sessions" in tag:
            self.expected_sessions[uid] = tag["num_sessions"]

    def _withdraw(self, key: str) -> None:
        """Take a key out of where it is listed; its place in the order stays."""
        status = self._status.pop(key, None)
        if status is not None:
            del self.prompts[status][key]
            self.expected_sessions.pop(key, None)
        elif self.rows.pop(key, None) is not None:
            members = self._rows_of[uid_of(key)]
            del members[key]
            if not members:
                del self._rows_of[uid_of(key)]

    @property
    def terminal(self) -> dict[str, int]:
        """Prompts whose sessions have all settled: {uid: global_steps}."""
        return self.prompts["finished"] | self.prompts["failure"]

    @property
    def in_flight(self) -> dict[str, int]:
        """Prompts that may still get rows: {uid: global_steps}."""
        return self.prompts["pending"] | self.prompts["running"]

    def oldest(self, num_prompts: int) -> list[str]:
        """The uids of that many settled prompts: by the step that submitted them, then in order of first write."""
        terminal = self.terminal
        return sorted(terminal, key=lambda uid: (terminal[uid], self._place[uid]))[:num_prompts]

    def keys_of(self, uids: Iterable[str]) -> list[str]:
        """Keys of the rows of these prompts, in order of first write."""
        return sorted((key for uid in uids for key in self._rows_of.get(uid, ())), key=self._place.__getitem__)

    def counts(self) -> str:
        """pending 0, running 1, finished 63, failure 0"""
        return ", ".join(f"{status} {len(self.prompts[status])}" for status in STATUSES)


def staleness(global_steps: int, submitted_at: int) -> int:
    """Weight versions that a prompt submitted at one step and trained at another spans; 1 on policy.

    verl counts from the step on the marker, not from the weights that generated the rows.
    """
    return global_steps - submitted_at + 1
