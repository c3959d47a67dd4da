"""Broken runs, one for each of the questions of `check_run`, held still in the middle of a step.

    run = broken_run("fields")
    print(run.symptom)                                  what a person sees
    presence(run.tq, run.stage, run.config, run.batch)  every view works on run.tq
    run.check(key, field)                               is it this?
    run.seven()                                         check_run with all that is known of the run
    run.reveal(), run.mend()

A run has what `check_run` looks at: config, queue, handle, workers, task ledger, formulas. The rows are those of a
recorded step, so no model is run. `exception` has a module of its own (rewards.py): it needs a run that really fails.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kitlib.agent_loop.ledger import TaskLedger
from kitlib.config import Config, load_config
from kitlib.inspector.doctor import RunCheck, check_run
from kitlib.lessons import faults
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.debug_it.answers import number_or_quoted
from kitlib.lessons.debug_it.own_grpo import divide_by_n
from kitlib.lessons.fixtures import Fixture, load_fixture
from kitlib.lessons.plain_checks import check_choice
from kitlib.lessons.reading import name_of
from kitlib.trainer.formulas import Formula, reference_formulas
from kitlib.transfer_queue import KVBatchMeta, TransferQueue

REWARD_IS_FLAT = "The run goes on without an error, and the reward does not rise."
WORKER = "a worker"  # stands for a worker group: question 5 only asks whether there is one


@dataclass
class BrokenRun:
    """As much of a trainer as the seven questions look at.

    symptom: what a person sees. asked: the overrides that this person had in mind. mode: the mode in mind.
    """

    symptom: str
    asked: list[str]
    config: Config = field(repr=False)
    tq: Any = field(repr=False)
    batch: KVBatchMeta | None = field(repr=False)
    stage: str | None
    says: str = field(repr=False)
    judge: Callable[..., Answer] = field(repr=False)
    mend: Callable[[], None] = field(repr=False)
    mode: str | None = field(default="sync", repr=False)
    trainer_mode: str = field(default="sync", repr=False)
    actor_rollout_wg: Any = field(default=WORKER, repr=False)
    ref_policy_wg: Any = field(default=None, repr=False)
    critic_wg: Any = field(default=None, repr=False)
    agent_loop_manager: Any = field(default_factory=lambda: SimpleNamespace(ledger=TaskLedger()), repr=False)
    global_steps: int = 1

    @property
    def formulas(self) -> dict[str, Formula]:
        """Advantages and loss once more, as a trainer has them."""
        return reference_formulas(self.tq, self.config)

    def check(self, *answers: Any) -> Answer:
        """Is it this?"""
        return open_answer() if unanswered(*answers) else self.judge(*answers)

    def seven(self) -> RunCheck:
        """The seven questions."""
        return check_run(self, overrides=self.asked, mode=self.mode, stage=self.stage, batch=self.batch)

    def reveal(self) -> str:
        """What is broken, in one sentence."""
        return self.says


def broken_run(name: str, seed: int = 0) -> BrokenRun:
    """A fresh run that is broken at this question. Raises KeyError for a name that is not in NAMES."""
    return _MAKERS[name](seed)


# 1 and 2: settings


def _settings(seed: int) -> BrokenRun:
    """The learning rate was asked for, and a line further down in the script says another one."""
    fixture = load_fixture("scored")
    lr = "actor_rollout_ref.actor.optim.lr"
    asked = [*fixture.overrides, f"{lr}=1e-3"]
    script = [*asked, "trainer.project_name=try_7", f"{lr}=1e-6"]
    used = load_config(script).select(lr)

    def judge(setting: Any, value: Any) -> Answer:
        if name_of(setting) != lr:
            near = name_of(setting).endswith("lr")
            hint = "give the whole dotted name" if near else "compare what was asked for with what the run uses"
            return mistakes([f"{setting!r} is not the one: {hint}"])
        said = number_or_quoted(value)
        if not math.isclose(said, used, rel_tol=1e-6):  # 1e-6 of float32 is not quite that of float64
            asked_for = " (that is what was asked for)" if math.isclose(said, 1e-3, rel_tol=1e-6) else ""
            return mistakes([f"the run does not use {value!r}{asked_for}"])
        return right(f"{lr} was set twice, and the later word wins")

    run = _of(fixture, f"{lr} was asked to be 1e-3; a later line of the script sets it to 1e-6", judge)
    run.asked, run.config = asked, load_config(script)
    return run


_WHERE_IS_IT = {
    "V0": "trainer.use_v1 is false, from a file: the serial pipeline hands one big batch from stage to stage, no queue",
    "another partition": "kv_list() names every partition, and there is none",
    "no worker": "the run logs metrics, so its workers work",
    "cleared": "rows are cleared at the end of a step, and the queue is empty at every moment",
}


def _mode(seed: int) -> BrokenRun:
    """The run is V0, because of a line in an old file of settings."""
    asked = ["trainer.v1.trainer_mode=colocate_async", "trainer.total_training_steps=50"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "last_year.yaml"
        file.write_text("trainer:\n  use_v1: false\n", encoding="utf-8")
        config = load_config(asked, file=file)
    symptom = "The run logs its metrics step by step, and the queue is empty whenever you look."
    says = "trainer.use_v1=false comes from last_year.yaml: the run is V0, and V0 has no queue"
    run = BrokenRun(symptom, asked, config, TransferQueue(), None, None, says, _choice("V0"), lambda: None)
    run.mode = run.trainer_mode = "colocate_async"
    return run


def _choice(truth: str) -> Callable[..., Answer]:
    return lambda word: check_choice(word, truth, _WHERE_IS_IT)


# 3 and 4: the queue


def _fields(seed: int) -> BrokenRun:
    fixture = load_fixture("scored")
    return _planted(fixture, faults.misspell_field(fixture.tq, _batch(fixture), seed), _MISSING)


def _lengths(seed: int) -> BrokenRun:
    fixture = load_fixture("scored")
    return _planted(fixture, faults.wrong_length(fixture.tq, _batch(fixture), seed), _NO_ROW)


_MISSING = "The step stops with: key 'rm_scores' not found. The first rows that you look at have it."
_NO_ROW = "The step stops with an error about shapes, deep inside a tensor operation. It names no row."


def _planted(fixture: Fixture, fault: faults.Fault, symptom: str) -> BrokenRun:
    return _of(fixture, fault.reveal(), fault.check, fault.mend, symptom)


# 5: workers

_WORKERS = {
    "actor_rollout_wg": "it is there: it holds the policy",
    "critic_wg": "it is not there, and the estimator grpo needs no critic",
    "agent_loop_manager": "it is there: the answers of this batch came from it",
}


def _workers(seed: int) -> BrokenRun:
    """The config asks for a KL to a reference policy, and nobody has built one."""
    fixture = load_fixture("sampled")
    asked = [*fixture.overrides, "actor_rollout_ref.actor.use_kl_loss=true"]

    def judge(name: Any) -> Answer:
        if name_of(name) == "ref_policy_wg":
            return right("use_kl_loss compares with a reference policy, and there is no worker that holds one")
        why = _WORKERS.get(name_of(name))
        return mistakes([f"{name}: {why}" if why else f"{name!r} is no worker: take one of the names printed above"])

    symptom = "The step stops with: 'NoneType' object has no attribute 'compute_ref_log_prob'."
    run = _of(fixture, "ref_policy_wg was never created, although use_kl_loss=true needs it", judge, symptom=symptom)
    run.asked, run.config = asked, load_config(asked)
    return run


# 7: the formula

_FORMULAS = {
    "population std": "numpy's std divides by n, torch's by n - 1, and verl uses torch's",
    "no std": "without a division the advantages would be differences of rewards, at most 1",
    "other mean": "with another mean the advantages of a group would not add up to 0",
    "other rows": "on the wrong rows the same numbers would occur in another order",
}


def _formula(seed: int) -> BrokenRun:
    fixture = load_fixture("advantages")
    divide_by_n(fixture.tq, _batch(fixture))
    says = "the advantages were divided by the standard deviation with n instead of n - 1"
    symptom = "The run learns, but not as that of a colleague with the same settings."
    return _of(fixture, says, lambda word: check_choice(word, "population std", _FORMULAS), symptom=symptom)


def _two(seed: int) -> BrokenRun:
    """Two faults: a lost field, and below it the formula."""
    fixture = load_fixture("advantages")
    divide_by_n(fixture.tq, _batch(fixture))
    fault = faults.lose_field(fixture.tq, _batch(fixture), seed, ["old_log_probs"])
    says = f"{fault.reveal()}; and the advantages were divided by the standard deviation with n"
    run = _of(fixture, says, fault.check, fault.mend)
    run.symptom = "Somebody has already compared the loss with another library for two days. It differs."
    return run


def _batch(fixture: Fixture) -> KVBatchMeta:
    assert fixture.batch is not None, f"the fixture {fixture.name} has no handle"
    return fixture.batch


def _of(
    fixture: Fixture,
    says: str,
    judge: Callable[..., Answer],
    mend: Callable[[], None] = lambda: None,
    symptom: str = REWARD_IS_FLAT,
) -> BrokenRun:
    return BrokenRun(
        symptom, list(fixture.overrides), fixture.config, fixture.tq, fixture.batch, fixture.stage, says, judge, mend
    )


_MAKERS: dict[str, Callable[[int], BrokenRun]] = {
    "settings": _settings,
    "mode": _mode,
    "fields": _fields,
    "lengths": _lengths,
    "workers": _workers,
    "formula": _formula,
    "two": _two,
}
NAMES = tuple(_MAKERS)
