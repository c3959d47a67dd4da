"""Question 7 of check_run on real steps: estimators and losses come out the same, and what was changed is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kitlib.cli import main
from kitlib.inspector.doctor import RunCheck, check_run
from kitlib.run import check_run as check_folder
from kitlib.run import train
from kitlib.trainer.base import PPOTrainer
from kitlib.transfer_queue import KVBatchMeta, jagged

from .conftest import small_config

ACTOR = "actor_rollout_ref__actor__"
CHOICES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "grpo, token weights": {
        "algorithm__rollout_correction__rollout_is": "token",
        "actor_rollout_ref__rollout__temperature": 0.8,
    },
    "rloo, gspo": {"algorithm__adv_estimator": "rloo", ACTOR + "policy_loss__loss_mode": "gspo"},
    "gae": {"algorithm__adv_estimator": "gae", "critic__ppo_mini_batch_size": 4},
    "reinforce_plus_plus, KL in reward": {
        "algorithm__adv_estimator": "reinforce_plus_plus",
        "algorithm__use_kl_in_reward": True,
    },
    "opo, two steps on record": {
        "algorithm__adv_estimator": "opo",
        "kitlib__record_update": True,
        ACTOR + "ppo_mini_batch_size": 2,
        ACTOR + "loss_agg_mode": "seq-mean-token-mean",
    },
}


def one_step(trainer: PPOTrainer) -> KVBatchMeta:
    trainer.begin_step(1)
    return trainer.step()


def seventh(trainer: PPOTrainer, batch: KVBatchMeta) -> Any:
    found: RunCheck = check_run(trainer, stage="compute_metrics", batch=batch)
    return found.answers[6] if found.ok else found.failed


@pytest.mark.parametrize("name", CHOICES)
def test_what_the_config_names_comes_out_the_same(start: Callable[..., PPOTrainer], name: str) -> None:
    trainer = start(**CHOICES[name])
    batch = one_step(trainer)
    answer = seventh(trainer, batch)
    assert answer.state == "ok" and "advantages and policy loss come out the same" in answer.says, answer
    trainer.metrics["actor/pg_loss"] += 0.5
    answer = seventh(trainer, batch)
    assert answer.number == 7 and "policy loss: actor/pg_loss was" in answer.says


def test_a_changed_advantage_is_named(start: Callable[..., PPOTrainer]) -> None:
    trainer = start(algorithm__adv_estimator="rloo")
    batch = one_step(trainer)
    key = batch.keys[2]
    row = trainer.pull(batch.select_keys([key]), "advantages")["advantages"][0] + 0.3
    trainer.push(batch.select_keys([key]), advantages=jagged([row]))
    answer = seventh(trainer, batch)
    assert answer.number == 7 and f"of {key} has" in answer.says and "rloo makes" in answer.says
    assert "1 of 16 rows" in answer.says


def test_what_cannot_be_followed_is_no_fault(start: Callable[..., PPOTrainer]) -> None:
    trainer = start(**{ACTOR + "ppo_mini_batch_size": 2})
    answer = seventh(trainer, one_step(trainer))
    assert answer.state == "ok" and "nothing to compare policy loss with" in answer.says


def test_a_formula_that_breaks_is_no_fault(start: Callable[..., PPOTrainer]) -> None:
    trainer = start()
    batch = one_step(trainer)
    found = check_run(trainer, stage="compute_metrics", batch=batch, formulas={"mine": lambda run, batch: 1 / 0})
    assert found.ok and "mine could not be computed: ZeroDivisionError" in found.answers[6].says


def broken(self: PPOTrainer, batch: KVBatchMeta) -> KVBatchMeta:
    data = self.pull(batch, "advantages")["advantages"]
    self.push(batch, advantages=jagged([row + 1.0 for row in data.unbind()]))
    raise ValueError("no such luck")


def test_a_run_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The values that question 7 needs were recorded; the error is question 6, and hides it."""
    from kitlib.trainer.sync import PPOTrainerSync

    monkeypatch.setattr(PPOTrainerSync, "update_actor", broken)
    fields = ["rm_scores", "response_mask", "old_log_probs", "rollout_log_probs", "advantages", "uid"]
    config = small_config(kitlib__run_dir=str(tmp_path), kitlib__record_values=fields, trainer__val_before_train=False)
    from rich.console import Console

    with pytest.raises(ValueError, match="no such luck"):
        train(config, Console(quiet=True))
    found = check_folder(tmp_path, stage="update_actor", overrides=["data.train_batch_size=4"])
    assert found.failed is not None and found.failed.number == 6
    assert "ValueError: no such luck" in found.failed.says and "in broken" in found.failed.says
    assert main(["doctor", "--check", str(tmp_path), "data.train_batch_size=8"]) == 1
    assert "STOPPED AT 1" in capsys.readouterr().out
    (tmp_path / "recording" / "failure.txt").unlink()
    found = check_folder(tmp_path, stage="update_actor")
    assert found.failed is not None and found.failed.number == 7 and "grpo makes" in found.failed.says


def test_an_override_in_another_spelling_has_arrived(start: Callable[..., PPOTrainer]) -> None:
    trainer = start(**{ACTOR + "optim__lr": 1e-4})
    words = ["actor_rollout_ref.actor.optim.lr=1e-4", "trainer.logger=[]", "data.train_batch_size=4.0"]
    assert check_run(trainer, overrides=words).answers[0].state == "ok"
    assert check_run(trainer, overrides=["actor_rollout_ref.actor.optim.lr=1e-5"]).failed is not None
