"""Three groups with something wrong, to be told apart by their keys and tags alone.

short    one of its rows is gone; its marker says finished
orphan   its rows are there, its marker is gone
ghost    marker and rows are gone; a slow writer has put a status to the marker's key again
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from kitlib.inspector.render.wording import count
from kitlib.keys import is_trajectory_key, uid_of
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.expect import LessonError
from kitlib.lessons.reading import meant_by, name_of
from kitlib.transfer_queue import QueueProtocol

KINDS = ("short", "orphan", "ghost")
_MEANS = {
    "short": "has a marker and fewer rows than the marker promises",
    "orphan": "has rows and no marker",
    "ghost": "is a bare key with a status, without is_prompt and without rows",
    "healthy": "has its marker and all its rows",
}


@dataclass(frozen=True)
class OddGroups:
    """Which group got which fault; `print` does not tell."""

    uids: dict[str, str] = field(repr=False)  # kind -> uid
    healthy: tuple[str, ...] = field(repr=False)
    lost_row: str = field(repr=False)  # of the short group

    def check(self, short: Any, orphan: Any, ghost: Any) -> Answer:
        """Is each of the three named rightly? The first characters of a uid are enough, as the views show them."""
        if unanswered(short, orphan, ghost):
            return open_answer()
        said = {kind: name_of(uid) for kind, uid in zip(KINDS, (short, orphan, ghost), strict=True)}
        wrong = [self._mistake(kind, uid) for kind, uid in said.items()]
        wrong = [text for text in wrong if text]
        return mistakes(wrong) if wrong else right(*(f"{said[kind]} {_MEANS[kind]}: {kind}" for kind in KINDS))

    def reveal(self) -> str:
        """What was done, in one sentence."""
        return "; ".join(f"{self.uids[kind]} {_MEANS[kind]}" for kind in KINDS)

    def _mistake(self, kind: str, said: str) -> str:
        kinds = {uid: name for name, uid in self.uids.items()} | dict.fromkeys(self.healthy, "healthy")
        meant = meant_by(said, kinds)
        uid = meant[0] if len(meant) == 1 else None
        if uid is None and is_trajectory_key(said):
            return f"{kind}: {said} is the key of a row; name the group by its uid, {uid_of(said)}"
        if len(meant) > 1:
            return f"{kind}: {count(len(meant), 'group')} begin with {said!r}; write as much of the uid as the views do"
        if uid is None:
            return f"{kind}: no group is called {said!r}"
        return "" if kinds[uid] == kind else f"{said} is no {kind}: it {_MEANS[kinds[uid]]}"


def plant_odd_groups(tq: QueueProtocol, seed: int = 0, partition_id: str = "train") -> OddGroups:
    """Break three finished groups of a partition; raises LessonError if there are fewer than four."""
    listed = tq.kv_list(partition_id).get(partition_id, {})
    uids = [key for key, tag in listed.items() if tag.get("is_prompt") and tag.get("status") == "finished"]
    if len(uids) < 4:
        raise LessonError(f"four finished groups are needed, and {partition_id} has {len(uids)}")
    draw = random.Random(seed)
    draw.shuffle(uids)
    odd, healthy = dict(zip(KINDS, uids, strict=False)), tuple(uids[3:])
    rows = {kind: [key for key in listed if is_trajectory_key(key) and uid_of(key) == uid] for kind, uid in odd.items()}
    lost = draw.choice(rows["short"])
    tq.kv_clear(keys=[lost, odd["orphan"], odd["ghost"], *rows["ghost"]], partition_id=partition_id)
    tq.kv_put(key=odd["ghost"], partition_id=partition_id, tag={"status": "finished"})
    return OddGroups(odd, healthy, lost)
