"""The time line of a run as files: a page with the picture, and a trace for ui.perfetto.dev; all parts of a run that
has gone on, as far as they were recorded."""

from __future__ import annotations

from pathlib import Path

from kitlib.inspector import Timeline, View, open_recording, save_chrome_trace, time_line
from kitlib.inspector.recording_files import parts_of
from kitlib.inspector.timeline import begins_late, joined
from kitlib.trainer.timeline import TimelineRecorder

PAGE, TRACE = "timeline.html", "trace.json"


def write_timeline(recorder: TimelineRecorder, run_dir: Path) -> View | None:
    """Write both files and return the picture; None if the run ended before its first stage."""
    if not recorder.has_spans:
        return None
    timeline = _with_earlier_parts(recorder.timeline(), run_dir)
    view = time_line(timeline, title=begins_late(timeline))
    (run_dir / PAGE).write_text(f"<!doctype html><meta charset=utf-8>{view.html()}", encoding="utf-8")
    save_chrome_trace(timeline, run_dir / TRACE)
    return view


def _with_earlier_parts(timeline: Timeline, run_dir: Path) -> Timeline:
    """Together with what was recorded of the run before it went on."""
    recorded = [part for place in parts_of(run_dir / "recording") if (part := open_recording(place)).spans]
    earlier = [part.own_timeline() for part in recorded]
    return joined([*(one for one in earlier if one.ended <= timeline.began), timeline])
