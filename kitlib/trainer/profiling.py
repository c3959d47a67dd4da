"""Profiles chosen steps with torch.profiler.

verl 0.9.1: PPOTrainer._start_profiling and utils/profiler/. Config: `global_profiler.steps` (which steps) and
`global_profiler.tool` (torch). Each profiled step leaves a Chrome trace `profile/step_<N>.json` in the run folder, for
ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

from kitlib.config import Config
from kitlib.trainer.errors import TrainerError
from kitlib.trainer.observers import Observer

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


class TorchProfiler(Observer):
    """Records the trainer's thread and its devices from the begin of a step to its end."""

    def __init__(self, steps: list[int], folder: Path) -> None:
        self.steps = set(steps)
        self.folder = folder
        self._profile: profile | None = None

    def on_step_begin(self, trainer: PPOTrainer) -> None:
        if trainer.global_steps in self.steps:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities)
            self._profile.start()

    def on_step_end(self, trainer: PPOTrainer) -> None:
        if self._profile is not None:
            self._profile.stop()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._profile.export_chrome_trace(str(self.folder / f"step_{trainer.global_steps}.json"))
            self._profile = None


def make_profiler(config: Config, run_dir: Path | None) -> list[Observer]:
    """The profiler that the config asks for, or none."""
    steps, tool = config.global_profiler.steps, config.global_profiler.tool
    if not steps:
        return []
    if tool not in (None, "torch"):
        raise TrainerError(f"global_profiler.tool={tool}: kitlib has torch")
    if run_dir is None:
        raise TrainerError("global_profiler.steps needs a run folder to write to: pass run_dir, or use `kitlib run`")
    return [TorchProfiler(list(steps), run_dir / "profile")]
