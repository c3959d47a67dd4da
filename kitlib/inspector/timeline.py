"""The time line of a run: who was busy when, as plain records.

verl 0.9.1 has timers a step (`timing_s/*`) and profiler ranges (utils/profiler/), and no picture over the lanes of a
run.

    driver      sample....  old adv update | sample..  old adv update |      stages; waiting is not work
    rank 0      ..........  old     update | ........  old     update |      the stages that run on a model
    server-0    requests, as many at once as the server decodes              from joining the batch to the last token

A span is made by whoever saw it: kitlib.trainer.timeline records a run of kitlib, a reader of a foreign log may make
others. What the picture says is computed here, from spans alone:

    busy(lane)    seconds in which at least one span of work runs on the lane
    t_train       busy seconds of the driver        t_gen   busy seconds of the busiest server
    serial        t_train + t_gen: one after the other, as V0 does it
    bound         max(t_train, t_gen): nobody can be done before the slower of the two has done its work

A run that was ended and goes on from a checkpoint has several parts. `joined` puts them on one axis; the time between
them, which may be a night, is shown as a pause of fixed width and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from kitlib.contract import StageRecord
from kitlib.errors import KitError

Kind = Literal["work", "wait", "sync", "request"]
DRIVER, RANK, SERVER = "driver", "rank", "server"
WAITS = {"sample", "generate_sequences", "validate"}  # the driver waits for the servers
PAUSE_SHARE, MOST_PAUSED = 0.05, 0.25  # width of a pause on the axis, and of all of them, of the running time


class EmptyTimelineError(KitError):
    """A time line without a span has no begin, no end and no picture."""


@dataclass(frozen=True)
class Span:
    """Something that took time on one lane.

    kind: "work" (a stage that computes), "wait" (a stage that waits for others), "sync" (weights go to the servers; it
    is work too), "request" (a generation request that is being decoded).
    """

    lane: str
    kind: Kind
    name: str
    started: float
    """Seconds since the epoch."""
    ended: float
    step: int | None = None
    """`global_steps` of the stage, or the weight version that wrote the last token of the request."""
    details: Mapping[str, int | str | None] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.ended - self.started


def stage_span(record: StageRecord, lane: str) -> Span:
    """The span of a stage that has ended."""
    assert record.seconds is not None, f"{record.stage} still runs"
    kind: Kind = "wait" if record.stage in WAITS else "sync" if record.stage == "update_weights" else "work"
    details: dict[str, int | str | None] = {"rows": record.num_rows} if record.num_rows else {}
    if record.error is not None:
        details["error"] = record.error
    return Span(lane, kind, record.stage, record.started, record.started + record.seconds, record.global_steps, details)


class Pause(NamedTuple):
    """The run was down between two of its parts: where the axis shows it, and how long it was in truth."""

    began: float
    ended: float
    seconds: float


@dataclass(frozen=True)
class Timeline:
    """The spans of one run, and what they add up to. pauses: see `joined`; no span lies in one."""

    title: str
    spans: tuple[Span, ...]
    pauses: tuple[Pause, ...] = ()

    def __post_init__(self) -> None:
        if not self.spans:
            raise EmptyTimelineError(f"the time line {self.title!r} has no span: nothing was recorded yet")

    @cached_property
    def began(self) -> float:
        return min(span.started for span in self.spans)

    @cached_property
    def ended(self) -> float:
        return max(span.ended for span in self.spans)

    @property
    def extent(self) -> float:
        """Length of the axis in seconds, pauses as wide as they are shown."""
        return self.ended - self.began

    @property
    def seconds(self) -> float:
        """Seconds in which the run was up."""
        return self.extent - sum(pause.ended - pause.began for pause in self.pauses)

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Driver first, then ranks, then servers, then what else there is, each kind in the order of its numbers."""
        return tuple(sorted({span.lane for span in self.spans}, key=_lane_order))

    @property
    def servers(self) -> tuple[str, ...]:
        """Lanes with requests."""
        with_requests = {span.lane for span in self.spans if span.kind == "request"}
        return tuple(lane for lane in self.lanes if lane in with_requests)

    def of_lane(self, lane: str) -> list[Span]:
        """Spans of a lane, by begin."""
        return sorted((span for span in self.spans if span.lane == lane), key=lambda span: (span.started, span.ended))

    def busy(self, lane: str) -> float:
        """Seconds in which the lane works."""
        return sum(end - begin for begin, end in merged(span for span in self.of_lane(lane) if span.kind != "wait"))

    def idle_share(self, *lanes: str) -> float:
        """Share of the run in which a lane does not work; the mean over several lanes. 1 for no lane."""
        if not lanes or not self.seconds:
            return 1.0
        return 1.0 - sum(map(self.busy, lanes)) / (len(lanes) * self.seconds)

    @property
    def t_train(self) -> float:
        """Busy seconds of the driver (its ranks work while it waits for them)."""
        return self.busy(DRIVER)

    @property
    def t_gen(self) -> float:
        """Busy seconds of the busiest server; the others work beside it."""
        return max(map(self.busy, self.servers), default=0.0)

    @property
    def bound(self) -> float:
        """Seconds below which the run cannot get by overlapping alone."""
        return max(self.t_train, self.t_gen)

    @property
    def headline(self) -> str:
        """One line: how long, how long one after the other, how long at best, who was idle."""
        shares = f"trainer idle {self.idle_share(DRIVER):.0%}, rollout idle {self.idle_share(*self.servers):.0%}"
        parts = f" in {len(self.pauses) + 1} parts" if self.pauses else ""
        return (
            f"{self.title}: {self.seconds:.1f} s{parts}; serial would be {self.t_train + self.t_gen:.1f} s; "
            f"full overlap {self.bound:.1f} s; {shares}"
        )

    def syncs(self) -> list[float]:
        """When the servers had new weights: ends of the sync spans."""
        return sorted(span.ended for span in self.spans if span.kind == "sync")

    def between(self, began: float, ended: float) -> Timeline:
        """The part of the run between two moments; spans that cross one are cut there."""
        cut = (
            replace(span, started=max(span.started, began), ended=min(span.ended, ended))
            for span in self.spans
            if span.ended > began and span.started < ended
        )
        within = (pause for pause in self.pauses if began <= pause.began and pause.ended <= ended)
        return Timeline(self.title, tuple(cut), tuple(within))

    def steps(self, first: int, last: int) -> Timeline:
        """The part from the begin of step `first` to the end of step `last`, as the driver's stages tell it."""
        own = [s for s in self.spans if s.lane == DRIVER and s.step is not None and first <= s.step <= last]
        if not own:
            raise EmptyTimelineError(f"the time line {self.title!r} has no stage of the steps {first} to {last}")
        return self.between(min(span.started for span in own), max(span.ended for span in own))

    def load(self, lane: str, edges: Sequence[float]) -> list[float]:
        """Mean number of spans at once in each of the bins between `edges` (seconds since the epoch, ascending)."""
        totals = [0.0] * (len(edges) - 1)
        width = (edges[-1] - edges[0]) / len(totals)
        for span in self.of_lane(lane):
            first = max(0, int((span.started - edges[0]) / width))
            for number in range(first, len(totals)):
                overlap = min(span.ended, edges[number + 1]) - max(span.started, edges[number])
                if overlap <= 0 and number > first:
                    break
                totals[number] += max(overlap, 0.0)
        return [total / width for total in totals]


def joined(parts: Sequence[Timeline]) -> Timeline:
    """The parts of one run on one axis. Times after a pause are moved: distances within a part stay what they were."""
    parts = sorted(parts, key=lambda part: part.began)
    if len(parts) == 1:
        return parts[0]
    width = min(PAUSE_SHARE, MOST_PAUSED / (len(parts) - 1)) * sum(part.seconds for part in parts)
    spans, pauses, ended = list(parts[0].spans), list[Pause](), parts[0].ended
    for before, part in pairwise(parts):
        shift = ended + width - part.began
        pauses.append(Pause(ended, ended + width, max(part.began - before.ended, 0.0)))
        spans += (replace(one, started=one.started + shift, ended=one.ended + shift) for one in part.spans)
        ended = part.ended + shift
    return Timeline(parts[-1].title, tuple(spans), tuple(pauses))


def begins_late(timeline: Timeline) -> str:
    """A sentence if the run's first steps are not there: it has gone on from a checkpoint, and nobody kept the part
    before."""
    steps = [one.step for one in timeline.spans if one.lane == DRIVER and one.name == "sample" and one.step is not None]
    return f"begins at step {min(steps)}: the part before it was not recorded" if min(steps, default=1) > 1 else ""


def merged(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """The intervals that at least one of the spans covers, in order."""
    intervals: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.started):
        if intervals and span.started <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], span.ended))
        else:
            intervals.append((span.started, span.ended))
    return intervals


def _lane_order(lane: str) -> tuple[int, int, str]:
    ranks = {DRIVER: 0, RANK: 1, SERVER: 2}
    name, _, number = lane.rpartition("-")
    return ranks.get(name or lane, 3), int(number) if number.isdecimal() else 0, lane
