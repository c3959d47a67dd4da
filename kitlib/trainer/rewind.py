"""Logs after a resume: what was written for steps that will be made again is cut off.

verl 0.9.1: none; after a resume its loggers hold some steps twice. A step is in metrics.jsonl and rollouts.jsonl of a
run folder once: as the weights that exist have seen it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from kitlib.config import Config

LOGS = ("metrics.jsonl", "rollouts.jsonl")


def rewind_logs(config: Config, run_dir: Path | None, global_steps: int) -> None:
    """Forget all steps after `global_steps` in the logs of the run folder and in the folders of dumps."""
    for path in [run_dir / name for name in LOGS] if run_dir is not None else []:
        if path.exists():
            rewind_jsonl(path, global_steps)
    for folder in (config.trainer.rollout_data_dir, config.trainer.validation_data_dir):
        for path in Path(folder).glob("*.jsonl") if folder else []:
            if path.stem.isdigit() and int(path.stem) > global_steps:
                path.unlink()


def rewind_jsonl(path: Path, global_steps: int) -> None:
    """Keep the lines whose "step" is at most `global_steps`; a last line that a kill has cut short goes, too."""
    draft = path.with_suffix(".draft")
    with path.open(encoding="utf-8") as old, draft.open("w", encoding="utf-8") as new:
        new.writelines(line for line in old if _step_of(line) <= global_steps)
    os.replace(draft, path)


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except ValueError:
        return float("inf")
