"""`check_run(run)`: seven questions in the order in which they pay off; it stops at the first that fails.

    1 settings     did each override arrive in the resolved config?
    2 mode         V0 or V1, and which trainer mode?
    3 fields       are the fields there that this stage and the next ones read?
    4 lengths      do batch size, response lengths, masks and groups agree?
    5 workers      were the workers created that the config asks for?
    6 exception    the original exception of the worker: the root cause, not the last traceback
    7 formula      advantage and loss of this batch, computed again and compared

Most hours are lost by starting at 7. verl 0.9.1 has no counterpart. `run` is a trainer of kitlib, a Recording, or a
queue; what it cannot tell is said to be unknown and does not stop the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import yaml

from kitlib.contract.switches import CRITIC, REFERENCE
from kitlib.inspector.doctor.advantages import group_advantages
from kitlib.inspector.doctor.choices import Choices
from kitlib.inspector.doctor.diagnose import doctor, look_at
from kitlib.inspector.doctor.finding import few, verb
from kitlib.inspector.doctor.root_cause import root_cause
from kitlib.inspector.doctor.rules import RULES
from kitlib.inspector.doctor.run_check import Answer, RunCheck
from kitlib.inspector.doctor.scene import grouped, keys_of, sessions_of

FIELD_FAMILIES = ("presence", "key grammar", "joins", "request", "prompts", "start-up")


@dataclass(frozen=True)
class Question:
    """What the run is asked with. See `check_run`."""

    run: Any
    overrides: Mapping[str, Any]
    config: Any
    arguments: dict[str, Any]
    error: BaseException | str | None
    formulas: Mapping[str, Callable[[Any], str]]
    target: Any = field(default=None)


def check_run(
    run: Any,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    error: BaseException | str | None = None,
    formulas: Mapping[str, Callable[[Any], str]] | None = None,
    **arguments: Any,
) -> RunCheck:
    """Ask the seven questions.

    overrides: what was asked for on the command line (`key=value` words or a mapping).
    error:     the exception of the run or the text of its log; by default what a trainer's task ledger, or a
        recording, has kept.
    formulas:  {name: check}; a check gets the run and returns what differs, "" if nothing does: the loss of this
        batch, for example. GRPO advantages are computed again here.
    arguments: those of `doctor` (stage, batch, config, global_steps, ...).
    """
    config = arguments.pop("config", None)
    config = getattr(run, "config", None) if config is None else config
    target = getattr(run, "tq", run)
    if arguments.get("global_steps") is None and isinstance(getattr(run, "global_steps", None), int):
        arguments["global_steps"] = run.global_steps
    asked = Question(run, _as_mapping(overrides), config, arguments, error, formulas or {}, target)
    answers: list[Answer] = []
    for number, (title, ask) in enumerate(QUESTIONS, start=1):
        stopped = any(one.state == "failed" for one in answers)
        state, says = ("not reached", "") if stopped else ask(asked)
        answers.append(Answer(number, title, state, says))
    return RunCheck(tuple(answers))


def _settings(asked: Question) -> tuple[str, str]:
    """Question 1."""
    if asked.config is None or not hasattr(asked.config, "select"):
        return "not known", "no config at hand: pass config="
    wrong = []
    for key, value in asked.overrides.items():
        got = asked.config.select(key, _NOWHERE)
        if got is _NOWHERE:
            wrong.append(f"{key} is no setting of this config")
        elif str(got) != str(value):
            wrong.append(f"{key} was set to {value!r}, and the run uses {got!r}")
    if wrong:
        return "failed", f"{few(wrong)}. Look at `kitlib config {' '.join(asked.overrides)}`."
    return "ok", f"{len(asked.overrides)} overrides arrived" if asked.overrides else "no override was named"


def _mode(asked: Question) -> tuple[str, str]:
    """Question 2."""
    if asked.config is None:
        return "not known", "no config at hand"
    choices = Choices(asked.config)
    use_v1, mode = choices["trainer.use_v1"], choices.mode
    own = getattr(asked.run, "trainer_mode", mode)
    if own not in (mode, "base"):
        return "failed", f"trainer.v1.trainer_mode is {mode}, and the trainer that runs is {own}."
    if use_v1 is False:
        return "ok", "V0: the serial pipeline; there is no queue to look at"
    return "ok", f"V1, {mode}"


def _fields(asked: Question) -> tuple[str, str]:
    """Question 3: rules about presence, keys and prompts."""
    return _by_rules(asked, lambda family: family in FIELD_FAMILIES)


def _lengths(asked: Question) -> tuple[str, str]:
    """Question 4: rules about lengths, layouts, groups, padding, versions."""
    return _by_rules(asked, lambda family: family not in FIELD_FAMILIES)


def _by_rules(asked: Question, belongs: Callable[[str], bool]) -> tuple[str, str]:
    if not hasattr(asked.target, "snapshot") and not hasattr(asked.target, "partitions"):
        return "not known", "there is no queue to look at"
    others = [rule.name for rule in RULES if not belongs(rule.family)]
    without = [*others, "mispaired_advantages", *asked.arguments.get("without", ())]  # the latter is question 7
    report = doctor(asked.target, config=asked.config, **(asked.arguments | {"without": without}))
    if report.errors:
        first = report.errors[0]
        more = f" ({len(report.errors) - 1} more)" if len(report.errors) > 1 else ""
        return "failed", f"{first.kind}: {first.says} {first.way_out}{more}"
    said = f"; {len(report.warnings)} warnings, see doctor()" if report.warnings else ""
    return "ok", f"{len(report.examination.checked)} rules found no error{said}"


def _workers(asked: Question) -> tuple[str, str]:
    """Question 5."""
    expected = {"actor_rollout_wg": True, "agent_loop_manager": True}
    if asked.config is not None:
        expected |= {"critic_wg": CRITIC.holds(asked.config), "ref_policy_wg": REFERENCE.holds(asked.config)}
    if not any(hasattr(asked.run, name) for name in expected):
        return "not known", "a queue or a recording does not tell which workers there are"
    absent = [name for name, due in expected.items() if due and getattr(asked.run, name, None) is None]
    if absent:
        said = f"{few(absent)} {verb(len(absent), 'was', 'were')} not created"
        return "failed", f"{said}: was init() called, and did fit() get the agent loop manager?"
    return "ok", few([name for name, due in expected.items() if due])


def _exception(asked: Question) -> tuple[str, str]:
    """Question 6."""
    ledger = getattr(getattr(asked.run, "agent_loop_manager", None), "ledger", None)
    failures = ledger.failures() if ledger is not None else ()
    error = asked.error or (failures[0].exception if failures else None) or getattr(asked.run, "failure", None)
    if not error:
        return (
            ("ok", "no task has failed") if ledger is not None else ("not known", "no exception at hand: pass error=")
        )
    where = f" in {failures[0]}" if failures and error is failures[0].exception else ""
    return "failed", f"The first of all exceptions{where}: {root_cause(error)}"


def _formula(asked: Question) -> tuple[str, str]:
    """Question 7."""
    results: dict[str, str | None] = {"advantages": _advantages_again(asked)}
    results |= {name: formula(asked.run) for name, formula in asked.formulas.items()}
    computed = {name: said for name, said in results.items() if said is not None}
    if not computed:
        return "not known", "no advantages on the rows, or another estimator than grpo"
    differs = [f"{name}: {said}" for name, said in computed.items() if said]
    return ("failed", "; ".join(differs)) if differs else ("ok", f"{few([*computed])} come out the same")


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
