"""What `sample` was waiting for, kept with a picture of the queue and read back.

verl 0.9.1 has no counterpart. The report is that of `ReplayBuffer.why_waiting()`; a recording holds it as plain data,
so that the view `why_waiting` works on a run that is gone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from kitlib.inspector.why_waiting_view import Report

NUM_PROMPTS_KEPT = 200  # of those in flight; the counts are of all


@dataclass(frozen=True)
class RecordedPrompt:
    """See kitlib.replay_buffer.waiting.BlockingPrompt."""

    uid: str
    status: str
    sessions_present: int
    sessions_expected: int | None
    age: int
    is_live: bool | None


@dataclass(frozen=True)
class RecordedWait:
    """See kitlib.replay_buffer.waiting.WaitReport."""

    request: str
    counts: str
    blocking: tuple[RecordedPrompt, ...]
    can_end: bool
    verdict: str
    held_back_by: tuple[str, ...] = ()

    @classmethod
    def of(cls, report: Report) -> RecordedWait:
        """A copy with the first prompts in flight."""
        names = list(RecordedPrompt.__dataclass_fields__)
        kept = report.blocking[:NUM_PROMPTS_KEPT]
        more = (
            f" ({len(kept)} of {len(report.blocking):,} in flight recorded)" if len(kept) < len(report.blocking) else ""
        )
        return cls(
            request=report.request,
            counts=report.counts + more,
            blocking=tuple(RecordedPrompt(**{name: getattr(one, name) for name in names}) for one in kept),
            can_end=report.can_end,
            verdict=report.verdict,
            held_back_by=tuple(report.held_back_by[:NUM_PROMPTS_KEPT]),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RecordedWait:
        """What `as_dict` gave, after a trip through JSON."""
        blocking = tuple(RecordedPrompt(**one) for one in data["blocking"])
        return cls(**{**data, "blocking": blocking, "held_back_by": tuple(data["held_back_by"])})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def says_the_same(self, other: RecordedWait | None) -> bool:
        """True if only time has passed."""
        return other is not None and replace(self, request="") == replace(other, request="")
