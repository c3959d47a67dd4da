"""The config: resolved values with where each came from, and which branches of the pipeline they switch.

verl 0.9.1: trainer/config/ppo_trainer.yaml; its five groups come first (algorithm, actor_rollout_ref, critic, reward,
trainer). The branches are the conditions of kitlib.contract.

    5 of 312 settings differ from the defaults; 12 of 16 stages run
    branch                                holds  what it switches
    use_kl_loss or use_kl_in_reward       no     compute_ref_log_prob; ref_log_prob read by update_actor
    group      setting          value  from      changes
    algorithm  adv_estimator    grpo   override  compute_values compute_advantage
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from kitlib.contract import STAGES, SWITCHES
from kitlib.contract.switches import Condition
from kitlib.inspector.judgement import short_condition
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.printable import value_of
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.view import PAGE_BUDGET, View

GROUPS = ("algorithm", "actor_rollout_ref", "critic", "reward", "trainer")
SAID = ("file", "override")  # origins that a person chose
FOLLOWS = ("default", "derived: follows", "derived: ${")  # origins that say nothing new


def config_table(
    settings: Any,
    key: str | None = None,
    *,
    changed_only: bool | None = None,
    title: str = "",
    budget: int = PAGE_BUDGET,
) -> View:
    """Settings by verl's groups, and the branches that they switch.

    settings: a kitlib Config (anything with to_flat() and origin()), or a (nested) mapping, whose values then have no
        origin.
    key:      a name or a pattern with * and ?; a name that is no setting is answered with near ones.
    changed_only: only what somebody set or what was found out at the start, and the switches of the contract; by
        default True unless a key is given.
    """
    flat = settings.to_flat() if hasattr(settings, "to_flat") else dict(_flatten(settings))
    origins = {name: _origin(settings, name) for name in flat}
    chosen = [name for name in flat if origins[name].split(":")[0] in SAID]
    shown = [name for name in flat if _matches(name, key)]
    if key is not None and not shown:
        return View(ViewModel(_unknown(key, flat)), budget)
    if changed_only if changed_only is not None else key is None:
        shown = [name for name in shown if name in SWITCHES or not origins[name].startswith(FOLLOWS)]
    total = count(len(flat), "setting")
    why = f"the filter key={key}" if key is not None else "the others are defaults, or follow a setting"
    note = f"showing {len(shown)} of {total}: {why}" if len(shown) < len(flat) else ""
    differ = listed([f"{name}={value_of(flat[name])}" for name in chosen], 4)
    model = ViewModel(
        headline=_headline(settings, flat, chosen),
        facts=line(title, (f"chosen: {differ}" if chosen else "", State.DIM)),
        tables=(*([_branches(settings)] if key is None else []), _settings(flat, shown, origins)),
        notes=(cell(note, State.DIM),) if note else (),
    )
    return View(model, budget)


def _flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _origin(settings: Any, name: str) -> str:
    return str(settings.origin(name)) if hasattr(settings, "origin") else "given"


def _matches(name: str, key: str | None) -> bool:
    if key is None or name == key or name.startswith(f"{key}."):
        return True
    return any(mark in key for mark in "*?") and fnmatchcase(name, key)


def _unknown(key: str, flat: Mapping[str, Any]) -> Cell:
    tails = {name.rsplit(".", 1)[-1]: name for name in reversed(list(flat))}
    near = [tails[tail] for tail in difflib.get_close_matches(key.rsplit(".", 1)[-1], tails, n=3, cutoff=0.8)]
    near += difflib.get_close_matches(key, flat, n=3, cutoff=0.8)
    hint = f"did you mean {' or '.join(list(dict.fromkeys(near))[:3])}?" if near else "no setting has a similar name"
    return line((key, State.STRONG), ("is no setting", State.BAD), hint)


def _headline(settings: Any, flat: Mapping[str, Any], chosen: Sequence[str]) -> Cell:
    running = sum(stage.runs_when.holds(settings) for stage in STAGES.values())
    differ = f"{len(chosen)} of {count(len(flat), 'setting')} chosen by file or override"
    return line((differ, State.STRONG), f"{running} of {len(STAGES)} stages run")


def _branches(settings: Any) -> Table:
    """A line for every condition of the contract: does it hold, and what hangs on it."""
    switched: dict[str, tuple[Condition, list[str]]] = {}
    for stage in STAGES.values():
        if stage.runs_when.text != "always":
            switched.setdefault(stage.runs_when.text, (stage.runs_when, []))[1].append(f"the stage {stage.name}")
        for verb, needs in (("read by", stage.reads), ("written by", stage.writes)):
            by_text: dict[str, list[str]] = {}
            for need in needs:
                if need.when.text != "always":
                    switched.setdefault(need.when.text, (need.when, []))
                    by_text.setdefault(need.when.text, []).append(need.field)
            for text, fields in by_text.items():
                switched[text][1].append(f"{listed(fields, 3)} {verb} {stage.name}")
    rows = []
    for text, (condition, effects) in switched.items():
        holds = condition.holds(settings)
        rows.append(
            (
                cell(short_condition(text), hover=text),
                cell("yes" if holds else "no", State.GOOD if holds else State.DIM),
                cell("; ".join(effects), State.PLAIN if holds else State.DIM),
            )
        )
    columns = (Column("branch", flow=True), Column("holds"), Column("what it switches", flow=True))
    return Table(columns, tuple(rows), cell("branches of the pipeline", State.STRONG), 2, "branches")


def _settings(flat: Mapping[str, Any], shown: Sequence[str], origins: Mapping[str, str]) -> Table:
    """A line a setting, verl's five groups first; the name of a group stands on its first line."""
    by_group: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name in shown:
        by_group.setdefault(name.split(".", 1)[0], []).append(name)
    users: dict[str, list[str]] = {}
    for stage in STAGES.values():
        for name in stage.switches:
            users.setdefault(name, []).append(stage.name)
    rows = [
        (cell("" if number else group, State.STRONG), *_row(name, flat[name], origins[name], users.get(name, [])))
        for group, names in by_group.items()
        for number, name in enumerate(names)
    ]
    heads = (Column("group"), Column("setting"), Column("value", flow=True), Column("from", flow=True))
    columns = (*heads, Column("changes", flow=True))
    return Table(columns, tuple(rows), cell("settings", State.STRONG), 2, "settings")


def _row(name: str, value: Any, origin: str, users: Sequence[str]) -> tuple[Cell, ...]:
    chosen = origin.split(":")[0] in SAID
    state = State.STRONG if chosen else State.DIM if origin == "default" else State.PLAIN
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else value_of(value)
    return (
        cell(name.split(".", 1)[-1], state, name),
        cell(shown, state),
        cell(value_of(origin, 200), State.HIGH if chosen else State.DIM),
        cell(" ".join(users), State.DIM),
    )
