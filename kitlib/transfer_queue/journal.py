"""The change feed: which keys changed since a reader looked last, so that a look costs what changed and not the queue.

    changes = tq.changes(since=0)            # everything, and the version that it is true for
    ...
    changes = tq.changes(changes.version)    # only what happened in between

The journal behind it is bounded. A reader that stayed away for too long gets everything again and starts over. The
TransferQueue package has no feed; readers fall back to kv_list there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Tags = dict[str, dict[str, Any]]  # key -> tag
Notes = tuple[dict[str, dict[str, None]], dict[str, set[str]]]  # partition -> keys written; partition -> keys cleared


@dataclass(frozen=True)
class Changes:
    """What a reader has to do to its own picture to be at `version`: forget it all if `is_complete`, else forget the
    cleared keys; then take in the tags, in this order.

    tags: {partition_id: {key: tag}} of keys whose tag or fields changed, as they are now, new ones in the order of
    their first put. cleared: {partition_id: keys}, also of keys that are back by now. A reader that applies every
    change keeps its keys in the order of kv_list.
    """

    version: int
    is_complete: bool
    tags: dict[str, Tags]
    cleared: dict[str, set[str]]

    @property
    def num_keys(self) -> int:
        """Keys that a reader has to look at."""
        return sum(map(len, self.tags.values())) + sum(map(len, self.cleared.values()))


class _Entry(NamedTuple):
    version: int
    partition_id: str
    keys: Sequence[str]
    cleared: bool


class Journal:
    """The keys of the last changes, `capacity` of them at most. Not thread-safe: the queue holds its lock."""

    def __init__(self, capacity: int = 20_000) -> None:
        self._capacity = capacity
        self._entries: deque[_Entry] = deque()
        self._num_keys = 0
        self._complete_since = 0  # every change after this version is in here

    def note(self, version: int, partition_id: str, keys: Sequence[str], cleared: bool = False) -> None:
        """These keys changed with this version."""
        self._entries.append(_Entry(version, partition_id, tuple(keys), cleared))
        self._num_keys += len(keys)
        while self._num_keys > self._capacity:
            oldest = self._entries.popleft()
            self._num_keys -= len(oldest.keys)
            self._complete_since = oldest.version

    def restart(self, version: int) -> None:
        """Everything changed with this version."""
        self._entries.clear()
        self._num_keys, self._complete_since = 0, version

    def read(self, since: int, partition_id: str | None) -> Notes | None:
        """Keys written and keys cleared after version `since`; None if that is too long ago.

        A key that was cleared last is not among the written ones.
        """
        if since < self._complete_since:
            return None
        recent = []
        for entry in reversed(self._entries):
            if entry.version <= since:
                break
            if partition_id in (None, entry.partition_id):
                recent.append(entry)
        written: dict[str, dict[str, None]] = {}
        cleared: dict[str, set[str]] = {}
        for entry in reversed(recent):
            own = written.setdefault(entry.partition_id, {})
            if entry.cleared:
                cleared.setdefault(entry.partition_id, set()).update(entry.keys)
                for key in entry.keys:
                    own.pop(key, None)
            else:
                own.update(dict.fromkeys(entry.keys))
        return written, cleared


def all_of(tags: Mapping[str, Tags], version: int) -> Changes:
    """The feed of a reader that starts over."""
    return Changes(version, True, dict(tags), {})
