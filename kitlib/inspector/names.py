"""Short names that stay different: random uids are long, a screen is narrow, and two keys must never look equal.

verl 0.9.1 has no counterpart (its logs print whole keys). All uids of a snapshot are cut to one length, the smallest
at which they still differ, so a name means the same in every table of a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from kitlib.inspector.render.model import Span
from kitlib.inspector.render.printable import name_of
from kitlib.inspector.render.states import State
from kitlib.keys import uid_of

if TYPE_CHECKING:
    from kitlib.transfer_queue import QueueSnapshot

MIN_LENGTH = 4  # characters; shorter prefixes read like numbers
WORTH_CUTTING = 8  # uids up to this length are left whole


class ShortNames:
    """Display names of uids and keys; `num_chars` is None when nothing needs to be cut."""

    def __init__(self, keys: Iterable[str]) -> None:
        uids = sorted({uid_of(key) for key in keys})
        longest = max(map(len, uids), default=0)
        needed = max([MIN_LENGTH, *(_common(a, b) + 1 for a, b in pairwise(uids))])
        self.num_chars = needed if longest > WORTH_CUTTING and needed < longest else None

    @classmethod
    def of(cls, *snapshots: QueueSnapshot) -> ShortNames:
        """Names that are unique over every partition of the snapshots."""
        return cls(key for snapshot in snapshots for part in snapshot.partitions.values() for key in part.keys)

    def uid(self, uid: str) -> str:
        """The uid's unique prefix."""
        return uid[: self.num_chars]

    def key(self, key: str) -> str:
        """The key with its uid cut to the unique prefix; what follows the uid stays whole."""
        uid = uid_of(key)
        return name_of(self.uid(uid) + key[len(uid) :])

    def span(self, key: str, state: State = State.PLAIN) -> Span:
        """The short key, with the whole one as hover text."""
        short = self.key(key)
        return Span(short, state, key if short != key else "")

    def spans(self, keys: Sequence[str], limit: int) -> list[Span]:
        """The first keys, then how many are left out."""
        left_out = len(keys) - limit
        more = [Span(f".. (+{left_out:,})", State.DIM)] if left_out > 0 else []
        return [*map(self.span, keys[:limit]), *more]

    def note(self) -> str:
        """The sentence that explains the cut, "" when nothing was cut."""
        if self.num_chars is None:
            return ""
        return f"uids are shown by their first {self.num_chars} characters, which are unique in this snapshot"


def _common(a: str, b: str) -> int:
    """Length of the common prefix."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
