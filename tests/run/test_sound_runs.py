"""The doctor beside sound runs of kitlib, before every stage and with values: nothing is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kitlib.config import load_config
from kitlib.contract import StageRecord
from kitlib.inspector.doctor import doctor, live
from kitlib.inspector.doctor.live import look_twice
from kitlib.lessons import wait_for_rollout
from kitlib.trainer.observers import Observer
from kitlib.trainer.task_runner import TaskRunner

ASIDE = ("submit_batch_to_rollout", "generate_sequences", "save_checkpoint", "update_weights", "clear")
SMALL = {
    "trainer.total_training_steps": 2,
    "trainer.val_before_train": False,
    "trainer.test_freq": 2,
    "data.train_batch_size": 4,
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
}
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "colocate_async": {},
    "separate_async": {
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
        "trainer.v1.separate_async.parameter_sync_step": 2,
    },
}
CHANCE = (
    "zero_std_groups",  # four groups of a model that guesses may all fail
    "off_policy_uncorrected",  # true of rows that were ready long before their update, as they are on a slow trainer
)


class Watcher(Observer):
    """Looks before every stage; before `sample`, when the queue moves, twice, the second time when it stands still."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.num_looks = 0
        self.said: list[str] = []

    def on_stage(self, trainer: Any, record: StageRecord) -> None:
        if record.seconds is not None or record.stage in ASIDE:
            return
        self.trainer = trainer
        look = look_twice if record.stage == "sample" else doctor
        report = look(trainer.tq, stage=record.stage, config=trainer.config, global_steps=trainer.global_steps)
        self.num_looks += 1
        self.said += [f"before {record.stage}: {one.kind} {one.says}" for one in report.errors]
        self.said += [f"before {record.stage}: {one.kind}" for one in report.warnings if one.kind not in CHANCE]
        self.said += [str(one) for one in report.examination.failures]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_said_beside_a_sound_run(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher()
    monkeypatch.setattr(live, "sleep", lambda seconds: wait_for_rollout(watcher.trainer))
    config = load_config(SMALL | {"trainer.v1.trainer_mode": mode} | MODES[mode])
    TaskRunner().run(config, run_dir=tmp_path, observers=[watcher])
    assert watcher.num_looks > 10
    assert not watcher.said
