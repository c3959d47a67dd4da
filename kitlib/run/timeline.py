"""The time line of a run as files: a page with the picture, and a trace for ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path

from kitlib.inspector import View, save_chrome_trace, time_line
from kitlib.trainer.timeline import TimelineRecorder

PAGE, TRACE = "timeline.html", "trace.json"


def write_timeline(recorder: TimelineRecorder, run_dir: Path) -> View | None:
    """Write both files and return the picture; None if the run ended before its first stage."""
    if not recorder.has_spans:
        return None
    timeline = recorder.timeline()
    view = time_line(timeline)
    (run_dir / PAGE).write_text(f"<!doctype html><meta charset=utf-8>{view.html()}", encoding="utf-8")
    save_chrome_trace(timeline, run_dir / TRACE)
    return view
