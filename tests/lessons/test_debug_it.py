"""Notebook 13: each broken run stops the seven questions at its own, and each wrong answer is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.inspector.doctor import doctor
from kitlib.inspector.doctor.root_cause import root_cause
from kitlib.lessons.debug_it import (
    NAMES,
    RAY_LOG,
    broken_run,
    check_factor,
    check_first_error,
    check_stop,
    run_with_bad_reward,
)
from kitlib.lessons.debug_it import rewards as rewards_module
from kitlib.lessons.expect import LessonError
from kitlib.run import check_run

LR = "actor_rollout_ref.actor.optim.lr"
STOPS = {"settings": 1, "mode": 2, "fields": 3, "lengths": 4, "workers": 5, "formula": 7, "two": 3}
RIGHT: dict[str, tuple[Any, ...]] = {
    "settings": (LR, 1e-6),
    "mode": ("V0",),
    "workers": ("ref_policy_wg",),
    "formula": ("population std",),
}
WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    ("settings", ("lr", 1e-6), "give the whole dotted name"),
    ("settings", ("data.train_batch_size", 4), "compare what was asked for"),
    ("settings", (LR, 1e-3), "that is what was asked for"),
    ("settings", (LR, np.float64(1e-3)), "that is what was asked for"),
    ("settings", (LR, "1e-3"), "that is what was asked for"),
    ("settings", (LR, "small"), "the run does not use 'small'"),
    ("settings", (LR, 1.001e-6), "the run does not use"),
    ("mode", ("cleared",), "the queue is empty at every moment"),
    ("mode", ("no worker",), "the run logs metrics"),
    ("mode", ("v0",), "is none of"),
    ("fields", ("x", "rm_score"), "no partition has a key"),
    ("lengths", ("x", "responses"), "as long as the tags"),
    ("workers", ("critic_wg",), "needs no critic"),
    ("workers", ("actor_rollout_wg",), "it is there"),
    ("workers", ("reward_wg",), "is no worker"),
    ("formula", ("no std",), "at most 1"),
    ("formula", ("other rows",), "in another order"),
    ("formula", ("other mean",), "would not add up to 0"),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_check_stops_at_its_question(name: str) -> None:
    for seed in (0, 1):
        run = broken_run(name, seed)
        found = run.seven()
        assert found.failed is not None and found.failed.number == STOPS[name]
        assert all(answer.state in ("ok", "not known") for answer in found.answers[: found.failed.number - 1])
        assert run.symptom and run.reveal() not in repr(run)


def test_there_is_a_run_for_every_question_but_the_sixth() -> None:
    assert set(STOPS) == set(NAMES)
    assert set(STOPS.values()) == {1, 2, 3, 4, 5, 7}


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_answer(name: str) -> None:
    run = broken_run(name)
    assert run.check(...).ok is None
    assert run.check(*RIGHT[name]).ok
    assert run.check(f" {RIGHT[name][0]} ", *RIGHT[name][1:]).ok


@pytest.mark.parametrize("value", ["1e-6", " 0.000001", np.float32(1e-6), torch.tensor(1e-6)])
def test_the_learning_rate_in_any_dress(value: Any) -> None:
    assert broken_run("settings").check(LR, value).ok


def test_a_key_and_a_name_may_stand_in_a_list() -> None:
    run = broken_run("fields", seed=3)
    (finding,) = doctor(run.tq, stage=run.stage, config=run.config, batch=run.batch).errors
    assert run.check([finding.keys[0]], ["rm_score"]).ok


def test_the_view_below_the_findings_shows_the_row() -> None:
    run = broken_run("fields", seed=3)
    report = doctor(run.tq, stage=run.stage, config=run.config, batch=run.batch)
    panel = report._repr_mimebundle_()["text/html"].partition("<details")[2]
    assert "\N{BALLOT X}" in panel.partition("<tbody>")[2] and "showing 0" not in panel


@pytest.mark.parametrize(("name", "answers", "saying"), WRONG)
def test_a_wrong_answer_is_named(name: str, answers: tuple[Any, ...], saying: str) -> None:
    answer = broken_run(name).check(*answers)
    assert answer.ok is False and saying in " ".join(answer.says), answer.says


@pytest.mark.parametrize("name", ["fields", "lengths", "two"])
def test_found_by_the_doctor_and_mended(name: str) -> None:
    run = broken_run(name, seed=4)
    (finding,) = doctor(run.tq, stage=run.stage, config=run.config, batch=run.batch).errors
    fields = [*finding.fields[-1:]] if name != "fields" else ["rm_score"]
    assert run.check(finding.keys[0], *fields).ok
    run.mend()
    found = run.seven()
    assert (found.failed.number if found.failed else None) == (7 if name == "two" else None)


def test_where_it_stops() -> None:
    found = broken_run("two").seven()
    assert check_stop(..., found).ok is None and check_stop(3, found).ok
    for number, saying in ((7, "stops the check first"), (1, "has arrived"), (6, "no task"), (4, "one answer before")):
        answer = check_stop(number, found)
        assert answer.ok is False and saying in " ".join(answer.says), answer.says


def test_the_first_error_of_the_log() -> None:
    assert root_cause(RAY_LOG).startswith("ValueError: invalid literal for int()")
    assert check_first_error(..., RAY_LOG).ok is None
    for right in ("ValueError", "ValueError: invalid", " ValueError", ValueError, ValueError("invalid literal")):
        assert check_first_error(right, RAY_LOG).ok
    for error, saying in (
        ("KeyError", "printed last"),
        (KeyError, "printed last"),
        ("RuntimeError", "direct cause"),
        ("ray.exceptions.RayTaskError(KeyError)", "only carries"),
        ("TypeError", "no traceback"),
    ):
        assert saying in " ".join(check_first_error(error, RAY_LOG).says)


def test_the_factor() -> None:
    assert check_factor((8 / 7) ** 0.5, 8).ok and check_factor(..., 8).ok is None
    for factor, saying in ((8 / 7, "take the root"), ((7 / 8) ** 0.5, "other way round"), (1, "equal formulas")):
        answer = check_factor(factor, 8)
        assert answer.ok is False and saying in " ".join(answer.says), answer.says


SMALL = [
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "trainer.total_training_steps=4",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.logger=[]",
]


def test_a_run_that_fails_leaves_its_first_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "invalid literal for int()" in run_with_bad_reward(tmp_path, SMALL)
    found = check_run(tmp_path / "run", overrides=SMALL)
    assert found.failed is not None and found.failed.number == 6
    assert "my_reward.py, line 4, in compute_score" in found.failed.says
    harmless = rewards_module.SOURCE.replace("int(answer) == int(ground_truth)", "answer == ground_truth")
    monkeypatch.setattr(rewards_module, "SOURCE", harmless)
    monkeypatch.setattr(rewards_module, "load_config", _one_step)
    (tmp_path / "again").mkdir()
    with pytest.raises(LessonError, match="did not"):
        run_with_bad_reward(tmp_path / "again", SMALL)


def _one_step(words: list[str]) -> Any:
    from kitlib.config import load_config

    return load_config([*words, "trainer.total_training_steps=1"])
