"""Looks at partitions, again and again: each look costs what changed since the last one.

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, ReplayBuffer._sync_metadata_from_transfer_queue, which lists every key
every time.
"""

from __future__ import annotations

from kitlib.replay_buffer.prompts import PartitionView
from kitlib.transfer_queue import QueueProtocol


def fresh_view(tq: QueueProtocol, partition_id: str) -> PartitionView:
    """Prompts and rows as they are now, from a full listing."""
    return PartitionView.of(partition_id, tq.kv_list(partition_id).get(partition_id, {}))


class Lookout:
    """Keeps the view of every partition that it was asked for. For one thread: a look changes the view of the look
    before.
    """

    def __init__(self, tq: QueueProtocol) -> None:
        self._tq = tq
        self._seen: dict[str, tuple[int, PartitionView]] = {}  # partition -> (version of the queue, view)

    def look(self, partition_id: str) -> PartitionView:
        """Prompts and rows as they are now. A queue without a change feed is listed in full."""
        if not hasattr(self._tq, "changes"):
            return fresh_view(self._tq, partition_id)
        since, view = self._seen.pop(partition_id, (0, PartitionView(partition_id)))
        changes = self._tq.changes(since, partition_id)
        if changes.is_complete:
            view = PartitionView(partition_id)
        view.forget(changes.cleared.get(partition_id, ()))
        view.update(changes.tags.get(partition_id, {}))
        self._seen[partition_id] = (changes.version, view)  # only now: an update that raised is no base for the next
        return view
