"""`check_run(run)`: seven questions in the order in which they pay off; it stops at the first that fails.

    1 settings     did each override arrive in the resolved config?
    2 mode         V0 or V1, and which trainer mode?
    3 fields       are the fields there that this stage and the next ones read?
    4 lengths      do batch size, response lengths, masks and groups agree?
    5 workers      were the workers created that the config asks for?
    6 exception    the original exception of the worker: the root cause, not the last traceback
    7 formula      advantages and policy loss of this batch, computed again by the reference functions and compared

Most hours are lost by starting at 7. verl 0.9.1 has no counterpart. `run` is a trainer of kitlib, a Recording, or a
queue; what it cannot tell is said to be unknown and does not stop the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kitlib.contract.switches import CRITIC, REFERENCE
from kitlib.inspector.doctor.advantages import group_advantages
from kitlib.inspector.doctor.choices import Choices
from kitlib.inspector.doctor.diagnose import doctor, look_at
from kitlib.inspector.doctor.finding import few, some, verb
from kitlib.inspector.doctor.handle import handle_of
from kitlib.inspector.doctor.root_cause import first_failed_task, first_traceback, root_cause
from kitlib.inspector.doctor.rules import RULES
from kitlib.inspector.doctor.run_check import Answer, RunCheck
from kitlib.inspector.doctor.scene import grouped, keys_of, sessions_of
from kitlib.inspector.doctor.way_on import WayOn

Formula = Callable[[Any, Any], "str | None"]
FIELD_FAMILIES = ("presence", "key grammar", "joins", "request", "prompts", "start-up")


@dataclass(frozen=True)
class Question:
    """What the run is asked with. See `check_run`."""

    run: Any
    overrides: Mapping[str, Any]
    config: Any
    arguments: dict[str, Any]
    error: BaseException | str | None
    formulas: Mapping[str, Formula]
    target: Any = field(default=None)
    way_on: WayOn = field(default_factory=WayOn)


def check_run(
    run: Any,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    error: BaseException | str | None = None,
    formulas: Mapping[str, Formula] | None = None,
    logs: str | Path | None = None,
    shell: str | None = None,
    **arguments: Any,
) -> RunCheck:
    """Ask the seven questions.

    overrides: what was asked for on the command line (`key=value` words or a mapping).
    error:     the exception of the run or the text of its log; by default what a trainer's task ledger, or a
        recording, has kept.
    formulas:  {name: check}; a check gets the run and the handle of the batch and returns what differs, "" if nothing
        does, None if there is nothing to compare. By default those that a trainer brings along: its estimator and its
        policy loss. Of a run that brings none, GRPO advantages are computed again.
    logs:      a log, or a folder of logs such as /tmp/ray/session_latest/logs, to look for the first error in.
    shell:     what a command names as its source, where the answers are read in a shell: hints are commands then.
    arguments: those of `doctor` (stage, batch, config, global_steps, ...). mode is the one that you expect: sync,
        colocate_async, separate_async, or "v0".
    """
    config = arguments.pop("config", None)
    config = getattr(run, "config", None) if config is None else config
    target = getattr(run, "tq", run)
    if arguments.get("global_steps") is None and isinstance(getattr(run, "global_steps", None), int):
        arguments["global_steps"] = run.global_steps
    buffer = getattr(run, "replay_buffer", None)
    if arguments.get("waiting") is None and buffer is not None:
        arguments["waiting"] = buffer.why_waiting()
    if error is None and logs is not None:
        error = first_traceback(Path(logs))
    formulas = getattr(run, "formulas", {}) if formulas is None else formulas
    asked = Question(run, _as_mapping(overrides), config, arguments, error, formulas, target, WayOn(shell))
    answers: list[Answer] = []
    for number, (title, ask) in enumerate(QUESTIONS, start=1):
        stopped = any(one.state == "failed" for one in answers)
        state, says = ("not reached", "") if stopped else ask(asked)
        answers.append(Answer(number, title, state, says))
    return RunCheck(tuple(answers))


def _settings(asked: Question) -> tuple[str, str]:
    """Question 1."""
    if asked.config is None or not hasattr(asked.config, "select"):
        return "not known", f"no config at hand: {asked.way_on.config}"
    wrong: dict[str, str] = {}
    for key, value in asked.overrides.items():
        got = asked.config.select(key, _NOWHERE)
        if got is _NOWHERE:
            wrong[key] = f"{key} is no setting of this config"
        elif not _same(got, value):
            wrong[key] = f"{key} was set to {value}, and the run uses {got}"
    if wrong:
        came = {key: origin for key in wrong if (origin := _origin(asked.config, key))}
        where = f" What is used came from: {few([*dict.fromkeys(came.values())])}." if came else ""
        return "failed", f"{few([*wrong.values()])}.{where} See {asked.way_on.setting(next(iter(wrong)))}."
    return "ok", f"{some(len(asked.overrides), 'override')} arrived" if asked.overrides else "no override was named"


def _same(got: Any, asked: Any) -> bool:
    """True for one value in two spellings: 1e-4 is a word to YAML, [a] a list of another type to OmegaConf."""
    try:
        return float(got) == float(asked)
    except (TypeError, ValueError):
        return str(got) == str(asked)


def _mode(asked: Question) -> tuple[str, str]:
    """Question 2."""
    if asked.config is None:
        return "not known", f"no config at hand: {asked.way_on.config}"
    choices = Choices(asked.config)
    use_v1, mode = choices["trainer.use_v1"], choices.mode
    own, expected = getattr(asked.run, "trainer_mode", mode), asked.arguments.get("mode")
    came = f" ({origin})" if (origin := _origin(asked.config, "trainer.use_v1")) else ""
    if use_v1 is False and expected not in (None, "v0"):
        return "failed", (
            f"You expect V1, {expected}, and trainer.use_v1 is false{came}: this run is V0, the serial pipeline, which "
            "has no queue. Set trainer.use_v1=true."
        )
    if use_v1 is not False and expected not in (None, mode):
        return "failed", f"You expect {expected}, and trainer.v1.trainer_mode is {mode}: this run is V1, {mode}."
    if use_v1 is not False and own not in (mode, "base"):
        return "failed", f"trainer.v1.trainer_mode is {mode}, and the trainer that runs is {own}."
    if use_v1 is False:
        return "ok", "V0: the serial pipeline; there is no queue to look at"
    return "ok", f"V1, {mode}"


def _origin(config: Any, key: str) -> str:
    return str(config.origin(key)) if hasattr(config, "origin") else ""


def _fields(asked: Question) -> tuple[str, str]:
    """Question 3: rules about presence, keys and prompts."""
    return _by_rules(asked, lambda family: family in FIELD_FAMILIES)


def _lengths(asked: Question) -> tuple[str, str]:
    """Question 4: rules about lengths, layouts, groups, padding, versions."""
    return _by_rules(asked, lambda family: family not in FIELD_FAMILIES)


def _by_rules(asked: Question, belongs: Callable[[str], bool]) -> tuple[str, str]:
    if not _has_queue(asked):
        return "not known", "there is no queue to look at"
    others = [rule.name for rule in RULES if not belongs(rule.family)]
    without = [*others, "mispaired_advantages", *asked.arguments.get("without", ())]  # the latter is question 7
    report = doctor(asked.target, config=asked.config, **(asked.arguments | {"without": without}))
    if report.errors:
        first = report.errors[0]
        more = f" ({len(report.errors) - 1} more)" if len(report.errors) > 1 else ""
        return "failed", f"{first.kind}: {first.says} {first.way_out}{more}"
    said = f"; {some(len(report.warnings), 'warning')}, see {asked.way_on.findings}" if report.warnings else ""
    return "ok", f"{len(report.examination.checked)} rules found no error{said}"


def _has_queue(asked: Question) -> bool:
    return hasattr(asked.target, "snapshot") or hasattr(asked.target, "partitions")


def _workers(asked: Question) -> tuple[str, str]:
    """Question 5."""
    expected = {"actor_rollout_wg": True, "agent_loop_manager": True}
    if asked.config is not None:
        expected |= {"critic_wg": CRITIC.holds(asked.config), "ref_policy_wg": REFERENCE.holds(asked.config)}
    if not any(hasattr(asked.run, name) for name in expected):
        return "not known", "a queue or a recording does not tell which workers there are"
    absent = [name for name, due in expected.items() if due and getattr(asked.run, name, None) is None]
    if absent:
        why = [f"{name} was not created{_ASKED_BY.get(name, '')}" for name in absent]
        return "failed", f"{few(why)}. Was init() called with these settings, and did fit() get the agent loop manager?"
    return "ok", few([name for name, due in expected.items() if due])


_ASKED_BY = {
    "ref_policy_wg": ", and actor.use_kl_loss or algorithm.use_kl_in_reward asks for it",
    "critic_wg": ", and algorithm.adv_estimator (or critic.enable) asks for it",
}


def _exception(asked: Question) -> tuple[str, str]:
    """Question 6: of the tasks that failed the first one, else what ended the run."""
    ledger = getattr(getattr(asked.run, "agent_loop_manager", None), "ledger", None)
    failures = ledger.failures() if ledger is not None else ()
    recorded = first_failed_task(getattr(asked.run, "tasks", "") or "")
    if asked.error:
        said = root_cause(asked.error)
    elif failures:
        said = f"in {failures[0]}: {root_cause(failures[0].exception)}"
    elif recorded:
        where, _, what = recorded.replace("  ", " ").partition(": ")
        ended_it = bool(what) and what in (getattr(asked.run, "failure", "") or "")
        said = f"in {where}: {root_cause(asked.run.failure)}" if ended_it else f"in {recorded}"
    elif failure := getattr(asked.run, "failure", None):
        said = root_cause(failure)
    elif ledger is None:
        return "not known", f"no exception at hand: {asked.way_on.exception}"
    else:
        return "ok", "no task has failed"
    return "failed", f"the first of all exceptions, {said}" if said.startswith("in ") else f"first of all: {said}"


def _formula(asked: Question) -> tuple[str, str]:
    """Question 7."""
    has_queue = _has_queue(asked)
    if has_queue and (moved := _mispaired(asked)):
        return "failed", moved
    results = {"advantages": _advantages_again(asked) if has_queue and not asked.formulas else None}
    batch, broken = handle_of(asked.arguments.get("batch")), []
    for name, formula in asked.formulas.items():
        try:
            results[name] = formula(asked.run, batch)
        except Exception as error:  # noqa: BLE001 - a config of another version may lack what a formula reads
            broken.append(f"{name} could not be computed: {type(error).__name__}: {error}")
    computed = {name: said for name, said in results.items() if said is not None}
    if not computed:
        why = "; ".join(broken) or "no advantages on the rows, or no values at hand"
        return "not known", f"nothing to compare: {why}"
    differs = [f"{name}: {said}" for name, said in computed.items() if said]
    if differs:
        return "failed", "; ".join(differs)
    rest = [name for name in asked.formulas if name not in computed]
    more = f"; nothing to compare {few(rest)} with" if rest else ""
    return "ok", f"{few([*computed])} {verb(len(computed), 'comes', 'come')} out the same{more}"


def _mispaired(asked: Question) -> str:
    """The right numbers on the wrong rows, which is told apart from wrong numbers."""
    others = [rule.name for rule in RULES if rule.name != "mispaired_advantages"]
    report = doctor(asked.target, config=asked.config, **(asked.arguments | {"without": others}))
    return report.errors[0].says if report.errors else ""


def _advantages_again(asked: Question) -> str | None:
    """GRPO advantages of the rows that have some; "" if they agree, None if there is nothing to compare."""
    _, s = look_at(asked.target)
    choices = Choices(asked.config)
    rows = s.scene.having(s.readable_rows, "advantages")
    if choices.estimator != "grpo" or choices["algorithm.use_kl_in_reward"] or not rows or not s.has_values:
        return None
    stored, scores, masks = (s.read(name, rows) for name in ("advantages", "rm_scores", "response_mask"))
    for members in grouped(rows).values():
        sessions = list(sessions_of(members).values())
        rewards = [float(np.sum(scores.get(outputs[-1].key, np.nan))) for outputs in sessions]
        made = group_advantages(rewards, bool(choices["algorithm.norm_adv_by_std_in_grpo"]))
        for outputs, expected in zip(sessions, made, strict=True):
            for key in keys_of(outputs):
                if key in stored and not np.allclose(stored[key], expected * masks.get(key, 1), atol=2e-3):
                    return f"{key} has {np.ravel(stored[key])[:1]}, its group's rewards make {expected:.4f}"
    return ""


def _as_mapping(overrides: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(overrides, Mapping):
        return dict(overrides)
    pairs: Iterator[tuple[str, str, str]] = (word.partition("=") for word in overrides)
    return {key.lstrip("+~"): yaml.safe_load(value) for key, _, value in pairs}


_NOWHERE = object()
QUESTIONS: tuple[tuple[str, Callable[[Question], tuple[str, str]]], ...] = (
    ("did each override arrive in the resolved config?", _settings),
    ("V0 or V1, and which mode?", _mode),
    ("are the fields there?", _fields),
    ("do batch size, lengths and masks agree?", _lengths),
    ("were the workers created?", _workers),
    ("the original exception of the worker", _exception),
    ("formula and loss, computed again", _formula),
)
