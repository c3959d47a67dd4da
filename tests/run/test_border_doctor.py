"""The doctor at stage borders: silent while all goes well, beside the error when a stage fails, and cheap."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kitlib.contract import StageRecord
from kitlib.run.border_doctor import FILE, BorderDoctor
from kitlib.transfer_queue import TransferQueue

from ..inspector.doctor.cases import put
from ..inspector.doctor.healthy import rows_of, state


def trainer_of(raw: dict[str, Any], strict: bool = True) -> Any:
    tq = TransferQueue()
    put(raw, tq)
    return SimpleNamespace(tq=tq, config=raw["config"], global_steps=raw["global_steps"], strict=strict)


def run_stage(watcher: BorderDoctor, trainer: Any, name: str, error: str | None = None) -> StageRecord:
    record = StageRecord(name, trainer.global_steps, time.time(), 0)
    watcher.on_stage(trainer, record)
    record.seconds, record.error = 0.1, error
    watcher.on_stage(trainer, record)
    return record


def test_finding_stands_beside_the_error(tmp_path: Path) -> None:
    raw = state("advantage", 3, 4, seed=0)
    del rows_of(raw)[4]["fields"]["rm_scores"]
    record = run_stage(BorderDoctor(tmp_path), trainer_of(raw), "compute_advantage", "KeyError: 'rm_scores'")
    assert record.error is not None and record.error.startswith("KeyError")
    assert rows_of(raw)[4]["key"] in record.error and "field_missing" in record.error
    assert json.loads((tmp_path / FILE).read_text())["findings"][0]["fields"] == ["rm_scores"]


def test_a_sound_queue_is_not_blamed(tmp_path: Path) -> None:
    record = run_stage(BorderDoctor(tmp_path), trainer_of(state("advantage", 3, 4, 0)), "compute_advantage", "OSError")
    assert record.error == "OSError" and not list(tmp_path.iterdir())


def test_only_a_strict_run_is_looked_at() -> None:
    watcher = BorderDoctor()
    run_stage(watcher, trainer_of(state("advantage", 3, 4, 0), strict=False), "compute_advantage")
    assert not watcher.reports


def test_a_look_is_cheap() -> None:
    """128 rows; nine looks a step are below 1% of a step of ten seconds."""
    trainer, watcher = trainer_of(state("advantage", 16, 8, 0)), BorderDoctor()
    run_stage(watcher, trainer, "compute_advantage")
    began = time.process_time()
    for _ in range(5):
        run_stage(watcher, trainer, "compute_advantage")
    assert (time.process_time() - began) / 5 < 0.03
