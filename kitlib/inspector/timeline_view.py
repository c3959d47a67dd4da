"""The picture of a time line: one lane an actor, one bar a stage or a load of requests, and the sentence above it.

verl 0.9.1 has no counterpart.

    separate_async: 61.2 s; serial would be 104.9 s; full overlap 58.0 s; trainer idle 5%, rollout idle 3%
    driver    ··oooUUUUUUU|·oooUUUUUUU|      letters name stages, · is waiting, | a weight sync
    server-0  ▃▆███▇▅▃▂▁▁▂▆██▇▅▃▂▁           height is the number of requests at once

A run that has gone on after a restart is one picture; `/` is the time between its parts, told in words above.

A terminal gets bars of characters; a page gets them drawn (timeline_svg.py). Several time lines share one axis, so
that a mode is seen beside another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from kitlib.inspector.render.html_writer import write_html
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.timeline import Pause, Span, Timeline
from kitlib.inspector.timeline_svg import draw
from kitlib.inspector.view import PAGE_BUDGET, View

NUM_BINS = 54  # characters of a bar: with its lane and its numbers it fits into a terminal of 80
HEIGHTS = " ▁▂▃▄▅▆▇█"
WAITING, SYNC, NOTHING, PAUSE = "·", "|", " ", "/"
# A letter for the stages that take time, and one for all the others.
LETTERS = {
    "compute_old_log_prob": "o",
    "compute_log_prob": "o",
    "compute_ref_log_prob": "r",
    "compute_values": "v",
    "compute_advantage": "a",
    "update_critic": "c",
    "update_actor": "U",
    "save_checkpoint": "s",
}
OTHER = "-"


class TimelineView(View):
    """A view whose page has a drawing where its text has bars."""

    def __init__(self, model: ViewModel, picture: str, shares: Table, budget: int) -> None:
        self.picture = picture
        self.shares = shares
        super().__init__(model, budget - len(picture.encode()))

    def html(self) -> str:
        """The sentence, the drawing, and the shares of all lanes in one table."""
        head = write_html(ViewModel(self.model.headline, self.model.facts))
        return f"<div>{head}{self.picture}{write_html(ViewModel(Cell(), tables=(self.shares,)))}</div>"


def time_line(timelines: Timeline | Sequence[Timeline], *, title: str = "", budget: int = PAGE_BUDGET) -> View:
    """Who was busy when. Several time lines are drawn one below the other on one axis, each from its own begin."""
    several = [timelines] if isinstance(timelines, Timeline) else list(timelines)
    longest = max(timeline.extent for timeline in several)
    model = ViewModel(
        headline=cell(several[0].headline)
        if len(several) == 1
        else line(f"{len(several)} runs on one axis of {longest:.1f} s"),
        facts=line(title, *(_pause(number, one) for t in several for number, one in enumerate(t.pauses, start=1))),
        tables=tuple(_table(timeline, longest, with_caption=len(several) > 1) for timeline in several),
        notes=(cell(_legend(several), State.DIM),),
    )
    return TimelineView(model, draw(several, longest, budget // 2), _shares(several), budget)


def _pause(number: int, pause: Pause) -> str:
    return f"part {number + 1} began {duration(pause.seconds)} after part {number} ended"


def duration(seconds: float) -> str:
    """`12.4 s`, `3 min 4 s`, `10 h 3 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _table(timeline: Timeline, seconds: float, with_caption: bool) -> Table:
    columns = (Column("lane"), Column(f"0 to {seconds:.1f} s"), *_NUMBERS)
    rows = tuple(
        (cell(lane, State.STRONG), cell(bar(timeline, lane, seconds)), *_numbers(timeline, lane))
        for lane in timeline.lanes
    )
    return Table(columns, rows, cell(timeline.headline) if with_caption else Cell(), row_noun="lanes")


def _shares(timelines: Sequence[Timeline]) -> Table:
    rows = tuple(
        (cell(timeline.title), cell(lane, State.STRONG), *_numbers(timeline, lane))
        for timeline in timelines
        for lane in timeline.lanes
    )
    return Table((Column("run"), Column("lane"), *_NUMBERS), rows, row_noun="lanes")


_NUMBERS = (Column("busy s", align="right"), Column("idle", align="right"))


def _numbers(timeline: Timeline, lane: str) -> tuple[Cell, Cell]:
    return cell(f"{timeline.busy(lane):.1f}"), cell(f"{timeline.idle_share(lane):.0%}")


def bar(timeline: Timeline, lane: str, seconds: float, num_bins: int = NUM_BINS) -> str:
    """A lane in characters: heights for requests, letters for stages."""
    edges = [timeline.began + seconds * i / num_bins for i in range(num_bins + 1)]
    if lane in timeline.servers:
        load = timeline.load(lane, edges)
        most = max(load) or 1.0
        marks = [HEIGHTS[math.ceil(8 * value / most)] for value in load]
    else:
        spans = timeline.of_lane(lane)
        marks = [_letter(spans, begin, end) for begin, end in pairwise(edges)]
    middles = [(begin + end) / 2 for begin, end in pairwise(edges)]
    return "".join(PAUSE if _is_paused(timeline, at) else mark for at, mark in zip(middles, marks, strict=True))


def _is_paused(timeline: Timeline, at: float) -> bool:
    return any(pause.began <= at < pause.ended for pause in timeline.pauses)


def _letter(spans: Sequence[Span], began: float, ended: float) -> str:
    """What took most of a bin; a sync shows however short it is."""
    taken: dict[str, float] = {}
    for span in spans:
        overlap = min(span.ended, ended) - max(span.started, began)
        if span.kind == "sync" and began < span.ended <= ended:
            return SYNC
        if overlap > 0:
            letter = WAITING if span.kind == "wait" else LETTERS.get(span.name, OTHER)
            taken[letter] = taken.get(letter, 0.0) + overlap
    if not taken or sum(taken.values()) < (ended - began) / 2:
        return NOTHING
    return max(taken, key=lambda letter: taken[letter])


def _legend(timelines: Sequence[Timeline]) -> str:
    """What the characters mean, those that can occur alone."""
    names = {span.name for timeline in timelines for span in timeline.spans if span.kind == "work"}
    letters = [f"{LETTERS[name]} {name}" for name in LETTERS if name in names]
    pauses = [f"{PAUSE} restart"] if any(timeline.pauses for timeline in timelines) else []
    always = [f"{OTHER} other stages", f"{SYNC} weight sync", "height: requests at once"]
    return ", ".join([f"{WAITING} waiting", *letters, *always, *pauses])
