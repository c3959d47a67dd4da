"""The doctor at the borders of the stages: rules over metadata alone, before each stage of a strict run.

verl 0.9.1 has no counterpart. A finding costs nothing as long as the stage succeeds; when a stage fails, what was
found before it stands beside its error, and in `doctor.json` of the run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from kitlib.contract import StageRecord
from kitlib.inspector.doctor import Report, doctor
from kitlib.trainer.observers import Observer

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer

LOOKED_AT = (
    "balance_batch",
    "compute_reward_colocate",
    "compute_old_log_prob",
    "compute_ref_log_prob",
    "compute_values",
    "compute_advantage",
    "update_critic",
    "update_actor",
    "compute_metrics",
)
FILE = "doctor.json"


class BorderDoctor(Observer):
    """Give it to a trainer as an observer. reports: of the stages of the last step, by name."""

    def __init__(self, run_dir: Path | None = None) -> None:
        self.run_dir = run_dir
        self.reports: dict[str, Report] = {}

    def on_step_begin(self, trainer: PPOTrainer) -> None:
        self.reports = {}

    def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
        """Look before the stage; speak if it has failed."""
        if not trainer.strict or record.stage not in LOOKED_AT:
            return
        if record.seconds is None:
            self.reports[record.stage] = doctor(
                trainer.tq,
                stage=record.stage,
                config=trainer.config,
                global_steps=trainer.global_steps,
                values=False,
                without=("joins", "prompts"),
            )
        elif record.error and (found := self.reports.get(record.stage)) is not None and not found.ok:
            first = next(iter(found))
            record.error += f"\n  the doctor, before {record.stage}: {first.kind}: {first.says} {first.way_out}"
            if self.run_dir is not None:
                (self.run_dir / FILE).write_text(json.dumps(found.as_dict(), default=str) + "\n", encoding="utf-8")
