"""Seven questions in their order: each can stop the check, and says why."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kitlib.config import load_config
from kitlib.inspector.doctor import RunCheck, check_run
from kitlib.inspector.doctor.root_cause import root_cause
from kitlib.transfer_queue import TransferQueue

from .cases import put
from .healthy import rows_of, state

LOG = """
(WorkerDict pid=12) Traceback (most recent call last):
(WorkerDict pid=12)   File "/w/reward.py", line 7, in compute_score
(WorkerDict pid=12)     return float(text)
(WorkerDict pid=12) ValueError: could not convert string to float: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/w/main.py", line 3, in <module>
    ray.get(task)
ray.exceptions.RayTaskError(ValueError): ray::WorkerDict.update()
KeyError: 'rm_scores'
"""


def run_of(raw: dict[str, Any], *overrides: str, failures: tuple = ()) -> SimpleNamespace:
    """A trainer as far as check_run looks at one."""
    tq = TransferQueue()
    put(raw, tq)
    config = load_config([f"{key}={value}" for key, value in raw["config"].items()] + list(overrides))
    ledger = SimpleNamespace(failures=lambda: failures)
    return SimpleNamespace(
        tq=tq,
        config=config,
        trainer_mode="sync",
        global_steps=raw["global_steps"],
        actor_rollout_wg=object(),
        critic_wg=None,
        ref_policy_wg=None,
        agent_loop_manager=SimpleNamespace(ledger=ledger),
    )


def check(raw: dict[str, Any], run: Any = None, **arguments: Any) -> RunCheck:
    run = run_of(raw) if run is None else run
    return check_run(run, stage=raw["stage"], batch=raw["batch"], **arguments)


@pytest.fixture
def raw() -> dict[str, Any]:
    return state("update_actor", 3, 4, seed=1)


def stopped_at(found: RunCheck) -> int:
    assert found.failed is not None
    later = [one for one in found.answers if one.number > found.failed.number]
    assert all(one.state == "not reached" for one in later) and len(found.answers) == 7
    return found.failed.number


def test_a_sound_run_answers_all_seven(raw: dict[str, Any]) -> None:
    found = check(raw, overrides=["actor_rollout_ref.rollout.n=4"])
    assert found.ok and [one.state for one in found.answers] == ["ok"] * 7
    assert "none failed" in found.text()


def test_1_an_override_that_did_not_arrive(raw: dict[str, Any]) -> None:
    found = check(raw, overrides=["actor_rollout_ref.rollout.n=8"])
    assert stopped_at(found) == 1 and "rollout.n was set to 8, and the run uses 4" in found.failed.says


def test_2_another_mode_than_the_config_says(raw: dict[str, Any]) -> None:
    run = run_of(raw)
    run.trainer_mode = "colocate_async"
    assert stopped_at(check(raw, run)) == 2


def test_2_another_mode_than_the_reader_expects(raw: dict[str, Any]) -> None:
    found = check(raw, mode="colocate_async")
    assert stopped_at(found) == 2 and "You expect colocate_async" in found.failed.says
    run = SimpleNamespace(config=load_config(["trainer.use_v1=false"]))
    found = check_run(run, mode="sync")
    assert stopped_at(found) == 2 and "trainer.use_v1 is false (override)" in found.failed.says
    assert check_run(run, mode="v0").ok and check(raw, mode="sync").ok


def test_3_a_field_is_missing(raw: dict[str, Any]) -> None:
    row = rows_of(raw)[5]
    del row["fields"]["old_log_probs"]
    found = check(raw)
    assert stopped_at(found) == 3 and row["key"] in found.failed.says


def test_4_lengths_differ(raw: dict[str, Any]) -> None:
    values = rows_of(raw)[5]["fields"]["response_mask"]
    values["values"], values["shape"] = [*values["values"], 1], [values["shape"][0] + 1]
    assert stopped_at(check(raw)) == 4


def test_5_a_worker_is_missing(raw: dict[str, Any]) -> None:
    found = check(raw, run_of(raw, "actor_rollout_ref.actor.use_kl_loss=true"), without=["presence"])
    assert stopped_at(found) == 5 and "ref_policy_wg was not created" in found.failed.says
    run = run_of(raw)
    run.agent_loop_manager = None
    assert stopped_at(check(raw, run)) == 5


def test_6_the_first_exception(raw: dict[str, Any]) -> None:
    found = check(raw, error=LOG)
    assert (
        stopped_at(found) == 6 and "could not convert string to float: 'x' (/w/reward.py, line 7" in found.failed.says
    )


def test_7_advantages_that_do_not_follow_from_the_rewards(raw: dict[str, Any]) -> None:
    row = rows_of(raw)[2]
    row["fields"]["advantages"]["values"] = [9.0] * row["tag"]["response_len"]
    found = check(raw)
    assert stopped_at(found) == 7 and row["key"] in found.failed.says


def test_7_a_formula_of_the_caller(raw: dict[str, Any]) -> None:
    assert stopped_at(check(raw, formulas={"loss": lambda run, batch: "0.3, and 0.2 was logged"})) == 7


def test_a_queue_alone_tells_less(raw: dict[str, Any]) -> None:
    found = check(raw, run_of(raw).tq)
    assert [one.state for one in found.answers][:2] == ["not known"] * 2 and found.ok


def test_root_cause_of_a_chain() -> None:
    def fails() -> None:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise RuntimeError("second") from error

    with pytest.raises(RuntimeError) as caught:
        fails()
    assert root_cause(caught.value).startswith("ValueError: first (")
    assert root_cause(LOG).startswith("ValueError: could not convert")
    assert root_cause("nothing but a line") == "nothing but a line"


def test_6_the_log_that_ended_first(raw: dict[str, Any], tmp_path: Path) -> None:
    """Three workers of a cluster: one only warned, one died of a tool, one of the other's death."""
    for number, text in enumerate(["warning: slow\n", LOG, LOG.replace("float: 'x'", "float: 'later'")]):
        file = tmp_path / "logs" / f"worker-{number}.err"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        os.utime(file, (1000 + number, 1000 + number))
    assert "convert string to float: 'x'" in check(raw, logs=tmp_path / "logs").failed.says
    assert "float: 'later'" in check(raw, logs=tmp_path / "logs" / "worker-2.err").failed.says
    (tmp_path / "nothing").mkdir()
    assert check(raw, logs=tmp_path / "nothing").ok


def test_6_the_failed_task_of_a_recording_comes_first(raw: dict[str, Any]) -> None:
    tasks = (
        "running tasks: 1\n  prompt u2  for 3.0 s\nfailed tasks: 1\n  session u1_3  after 0.1 s: ValueError: no tool\n"
    )
    run = run_of(raw)
    run.tasks, run.failure = tasks, "SampleError: nothing is in flight"
    assert "session u1_3  after 0.1 s: ValueError: no tool" in check(raw, run).failed.says
    run.failure = 'Traceback (most recent call last):\n  File "tool.py", line 3, in call\nValueError: no tool\n'
    assert "in session u1_3 after 0.1 s: ValueError: no tool (tool.py, line 3, in call)" in check(raw, run).failed.says
    run.failure = "SampleError: nothing is in flight"
    run.tasks = "running tasks: 0\nfailed tasks: 0\n"
    assert "SampleError: nothing is in flight" in check(raw, run).failed.says


def test_a_run_without_a_queue_tells_what_it_can() -> None:
    run = SimpleNamespace(config=load_config(["trainer.use_v1=false"]))
    found = check_run(run)
    assert found.ok and "V0" in found.answers[1].says
    assert [one.state for one in found.answers[2:4]] == ["not known"] * 2
