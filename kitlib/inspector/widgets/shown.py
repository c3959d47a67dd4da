"""Shown: the picture that a widget shows, and the cheapest way to the next one.

following a queue with a change feed   only what changed is fetched; a whole picture only when somebody needs it
following any other queue              a whole picture a look, compared with the last one
frozen, or at a recorded moment        one snapshot, which stays
"""

from __future__ import annotations

import time
from typing import Any

from kitlib.inspector.source import snapshot_of
from kitlib.inspector.widgets.feed import Feed
from kitlib.inspector.widgets.grid import Grid
from kitlib.inspector.widgets.wire import Change
from kitlib.transfer_queue import PartitionSnapshot, QueueSnapshot


class Shown:
    """One partition at one moment, and the grid that the browser has of it.

    is_following: shows the newest picture. at: number of the recorded moment that is shown, or was last.
    Every method that moves on returns the Change of the grid, None if the grid started over.
    """

    def __init__(self, feed: Feed, partition_id: str | None, first_choice: str) -> None:
        self.feed = feed
        self.is_following, self.at = True, max(0, len(feed.moments) - 1)
        self._version = feed.version()  # read before the picture, which may then know more, never less
        self._snapshot = feed.newest()
        self._moment = None if feed.is_live else feed.moments[-1]
        self._is_behind = False
        self.taken_at = self._snapshot.taken_at
        if partition_id is None:
            names = self._snapshot.partitions
            partition_id = first_choice if first_choice in names else next(iter(names), first_choice)
        self.choose(partition_id)

    @property
    def is_live(self) -> bool:
        """True while what is shown is the queue as it is now."""
        return self.feed.is_live and self.is_following and not self.feed.has_ended

    @property
    def partition_id(self) -> str:
        """The partition that is shown; it need not exist yet."""
        return self.grid.partition_id

    @property
    def snapshot(self) -> QueueSnapshot:
        """The whole picture; taken anew if changes came in since the last one. Of a closed queue what was seen last."""
        if self._is_behind and self.feed.has_ended:
            last = {**self._snapshot.partitions, self.partition_id: self.grid.picture()}
            self._snapshot, self._is_behind = QueueSnapshot(self.taken_at, last), False
        elif self._is_behind:
            self._snapshot, self._is_behind = self.feed.newest(), False
        return self._snapshot

    @property
    def counts(self) -> dict[str, int]:
        """Keys per partition: exact for the one that is shown, of the last whole picture for the others."""
        others = {name: len(part.keys) for name, part in self._snapshot.partitions.items()}
        return {self.partition_id: 0, **others, self.partition_id: len(self.grid.keys)}

    @property
    def source(self) -> Any:
        """What is shown as a source of views: the queue, or the recorded moment, whose values may be recorded, too."""
        if self.is_live:
            return self.feed.tq
        return self._snapshot if self._moment is None else self._moment

    @property
    def label(self) -> str:
        """The words of the recorded moment that is shown, "" without any."""
        return "" if self._moment is None or isinstance(self._moment, QueueSnapshot) else str(self._moment)

    def row(self, key: str) -> PartitionSnapshot | None:
        """A picture in which the key is up to date."""
        is_cheap = self._is_behind and self.is_live
        source = self.feed.picture_of(self.partition_id, key) if is_cheap else self._snapshot
        return source.partitions.get(self.partition_id)

    def choose(self, partition_id: str) -> None:
        """Show another partition."""
        self.grid = Grid(partition_id)
        self.grid.update(self.snapshot.partitions.get(partition_id))

    def go_on(self) -> Change | None:
        """Show what is new in the queue that is being followed."""
        news = self.feed.news(self.partition_id, self._version)
        change = None if news is None else self.grid.patch(news.cleared, news.part)
        if news is None or change is None:
            return self.newest()
        self._version = news.version
        if change:
            self._is_behind, self.taken_at = True, time.time()
        return change

    def newest(self) -> Change | None:
        """Follow: show the newest picture."""
        self.is_following, self.at = True, max(0, len(self.feed.moments) - 1)
        self._version = self.feed.version()
        change = self._take(self.feed.newest())
        self._moment = None if self.feed.is_live else self.feed.moments[-1]
        return change

    def moment(self, at: int) -> Change | None:
        """Show a recorded snapshot, counted from 0; negative from the end. Raises IndexError."""
        moments = self.feed.moments
        moment = moments[at]
        self.is_following, self.at = False, at % len(moments)
        change = self._take(snapshot_of(moment))
        self._moment = moment
        return change

    def freeze(self) -> Change | None:
        """Keep the picture of now."""
        change = self._take(self.snapshot)
        self.is_following = False
        return change

    def _take(self, snapshot: QueueSnapshot) -> Change | None:
        self._snapshot, self._is_behind, self.taken_at, self._moment = snapshot, False, snapshot.taken_at, None
        return self.grid.update(snapshot.partitions.get(self.partition_id))
