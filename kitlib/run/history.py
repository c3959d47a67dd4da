"""What a recording keeps beside the queue: the time line, and what `sample` waits for.

verl 0.9.1 has no counterpart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kitlib.inspector import Recorder
from kitlib.trainer.observers import Observer
from kitlib.trainer.timeline import TimelineRecorder

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


class RunHistory(Observer):
    """Hands spans to the recorder as they are seen, and lets it ask the replay buffer."""

    def __init__(self, recorder: Recorder, timeline: TimelineRecorder) -> None:
        self.recorder, self.timeline = recorder, timeline
        timeline.listeners.append(recorder.span)  # now: the first weights are sent before the run begins

    def on_fit_begin(self, trainer: PPOTrainer) -> None:
        self.recorder.waiting = trainer.replay_buffer.why_waiting

    def on_fit_end(self, trainer: PPOTrainer) -> None:
        self.timeline.listeners.remove(self.recorder.span)
