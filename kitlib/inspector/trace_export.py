"""A time line as a trace that ui.perfetto.dev and chrome://tracing open.

verl 0.9.1: none; its profilers write traces of one process. Format: "Trace Event Format" (Google), JSON object form,
times in microseconds since the begin of the run. A lane is a process of the trace; requests that overlap go to
different rows (threads) of it, because a row can show only what is nested.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kitlib.inspector.timeline import Span, Timeline


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """The trace as the object that JSON takes."""
    events: list[dict[str, Any]] = []
    for pid, lane in enumerate(timeline.lanes, start=1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": lane}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}})
        events += (_complete(timeline, span, pid, row) for span, row in _rows(timeline.of_lane(lane)))
    for moment in timeline.syncs():
        at = _micros(moment - timeline.began)
        events.append({"ph": "i", "s": "g", "name": "weight sync", "cat": "sync", "ts": at, "pid": 1, "tid": 1})
    for pause in timeline.pauses:
        at, name = _micros(pause.began - timeline.began), f"restart after {pause.seconds:.1f} s"
        events.append({"ph": "i", "s": "g", "name": name, "cat": "restart", "ts": at, "pid": 1, "tid": 1})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": timeline.title}}


def save_chrome_trace(timeline: Timeline, path: str | Path) -> Path:
    """Write the trace to a file; returns its path."""
    path = Path(path)
    path.write_text(json.dumps(chrome_trace(timeline)), encoding="utf-8")
    return path


def _complete(timeline: Timeline, span: Span, pid: int, row: int) -> dict[str, Any]:
    step = {} if span.step is None else {"step": span.step}
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.kind,
        "ts": _micros(span.started - timeline.began),
        "dur": _micros(span.seconds),
        "pid": pid,
        "tid": row,
        "args": {**step, **span.details},
    }


def _rows(spans: list[Span]) -> Iterator[tuple[Span, int]]:
    """Each span with the first row on which nothing runs any more, or inside which it lies whole."""
    open_until: list[list[float]] = []  # ends of the spans that are open on each row, outermost first
    for span in spans:
        for row, ends in enumerate(open_until, start=1):
            while ends and ends[-1] <= span.started:
                ends.pop()
            if not ends or (span.kind != "request" and span.ended <= ends[-1]):
                ends.append(span.ended)
                yield span, row
                break
        else:
            open_until.append([span.ended])
            yield span, len(open_until)


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 1)
