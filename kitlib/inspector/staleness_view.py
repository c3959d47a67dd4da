"""Staleness: how old is what waits and what is there, against the threshold?

verl 0.9.1: trainer/ppo/v1/replay_buffer.py, and PPOTrainer._compute_metrics. A prompt spans
`step - its global_steps + 1` weight versions, 1 on policy; counted from the step on the marker, not from the weights
that generated. With max_off_policy_strategy=drop a finished prompt beyond the threshold is evicted; with wait, sampling
is held back while a prompt in flight has reached it. The sync trainer applies neither. Rows tell what really happened:
the oldest and newest weight version that wrote a token. Step t begins with the weights of version t - 1, and `behind`
is how far a row is from them: 0 on policy, as in the metrics training/off_policy/trajectory_staleness (newest version)
and trajectory_staleness_worst (oldest one).

    train  step 9: 2 of 64 prompts beyond the threshold 8 (drop): evicted at the next sample
    spans  prompts  pending  running  finished  failure  what will happen       uids
        9        2                           2           dropped, replaced      f3a1 9c02
        2       40                          40           -                      ..
    versions  rows  behind  what it means                  keys
      v5..v8     1    0..3  interrupted by 3 weight syncs  77fa_1_0
          v7    31       1  one version                    f3a1_0_0 9c02_3_0 .. (+29)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kitlib.inspector.markers import STATUS_STATES
from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.inspector.selection import Selection, select
from kitlib.inspector.settings import setting
from kitlib.inspector.source import Source, snapshot_of
from kitlib.inspector.tags import status_of
from kitlib.inspector.view import PAGE_BUDGET, View

NUM_UIDS = 4
BEHIND = "versions behind v{}, the weights of this step; 0 is on policy (newest..oldest if several wrote the row)"
THRESHOLD, STRATEGY = "trainer.v1.sampler.max_off_policy_threshold", "trainer.v1.sampler.max_off_policy_strategy"
MODE = "trainer.v1.trainer_mode"


class Policy:
    """What a config makes of an old prompt; a config that says nothing has verl's defaults (8, drop, sync)."""

    def __init__(self, config: Any) -> None:
        self.threshold: int | None = setting(config, THRESHOLD, 8 if config is None else None)
        self.strategy: str = setting(config, STRATEGY, "drop")
        self.mode: str = setting(config, MODE, "sync")

    @property
    def applies(self) -> bool:
        return self.mode != "sync" and self.threshold is not None

    def verdict(self, status: str, spans: int) -> str:
        """ "dropped", "holds sampling back", or "" if the age does not matter (yet)."""
        if not self.applies or self.threshold is None:
            return ""
        if self.strategy == "drop":
            return "dropped" if status == "finished" and spans > self.threshold else ""
        return "holds sampling back" if status in ("pending", "running") and spans >= self.threshold else ""

    def __str__(self) -> str:
        if self.threshold is None:
            return "no threshold"
        return f"threshold {self.threshold}, strategy {self.strategy}" + (
            "" if self.applies else ", not applied in sync"
        )


def lead(partition_id: str) -> int:
    """How far the number of a step is ahead of its weights: step t trains on from version t - 1, and validates t."""
    return 0 if partition_id == "val" else 1


def versions_spanned(global_steps: int, submitted_at: int) -> int:
    """Weight versions that a prompt submitted at one step and trained at another spans; 1 on policy."""
    return global_steps - submitted_at + 1


def staleness(
    source: Source,
    global_steps: int | None = None,
    config: Any = None,
    partition_id: str = "train",
    *,
    title: str = "",
    budget: int = PAGE_BUDGET,
) -> View:
    """The age of prompt markers and of rows. Reads tags only.

    global_steps: the trainer's step; None takes the newest step that any tag names (a lower bound).
    config:       for the threshold and the strategy; None means verl's defaults.
    Raises NoSuchPartitionError.
    """
    snapshot = snapshot_of(source)
    selection, names, policy = select(snapshot, partition_id), ShortNames.of(snapshot), Policy(config)
    tags = [*selection.tags(selection.markers), *selection.tags(selection.rows)]
    now = global_steps if global_steps is not None else _newest_step(tags, lead(partition_id))
    weights = now - lead(partition_id)
    guessed = "" if global_steps is not None else "step taken from the tags (the trainer may be ahead)"
    model = ViewModel(
        headline=line((partition_id, State.STRONG), f"step {now}", _verdict(selection, now, weights, policy)),
        facts=line(title, (str(policy), State.DIM), *((fact, State.DIM) for fact in _facts(selection))),
        tables=tuple(
            table for table in (_markers(selection, names, now, policy), _rows(selection, names, weights)) if table.rows
        ),
        notes=tuple(cell(note, State.DIM) for note in (guessed, names.note()) if note),
    )
    return View(model, budget)


def _newest_step(tags: Sequence[Mapping[str, Any]], after_weights: int) -> int:
    """The newest step that a tag speaks of: that of a prompt, or the one that begins with the weights of a row."""
    ahead = {"global_steps": 0, "max_global_steps": after_weights}
    return max((tag[name] + more for tag in tags for name, more in ahead.items() if _is_step(tag, name)), default=0)


def _is_step(tag: Mapping[str, Any], name: str) -> bool:
    return isinstance(tag.get(name), int)


def _ages(selection: Selection, now: int) -> dict[int, list[tuple[str, str]]]:
    """Versions spanned -> (uid, status) of the markers, oldest first."""
    ages: dict[int, list[tuple[str, str]]] = {}
    for key, tag in zip(selection.keys(selection.markers), selection.tags(selection.markers), strict=True):
        if _is_step(tag, "global_steps"):
            ages.setdefault(versions_spanned(now, tag["global_steps"]), []).append((key, status_of(tag)))
    return dict(sorted(ages.items(), reverse=True))


def _verdict(selection: Selection, now: int, weights: int, policy: Policy) -> tuple[str, State]:
    ages = _ages(selection, now)
    hit = [(key, policy.verdict(status, age)) for age, members in ages.items() for key, status in members]
    hit = [(key, what) for key, what in hit if what]
    total = sum(map(len, ages.values()))
    if hit:
        what = "will be dropped at the next sample" if hit[0][1] == "dropped" else "hold sampling back until they end"
        return (
            f"{len(hit)} of {count(total, 'prompt')} beyond the threshold {policy.threshold}: they {what}",
            State.WARN,
        )
    if ages:
        oldest = next(iter(ages))
        return f"the oldest of {count(total, 'prompt')} spans {count(oldest, 'weight version')}", State.GOOD
    rows = [tag for tag in selection.tags(selection.rows) if not tag.get("is_padding")]
    behind = [weights - tag["min_global_steps"] for tag in rows if _is_step(tag, "min_global_steps")]
    if not behind:
        return "no row tells its weight version", State.WARN
    if max(behind) <= 0:
        return "no marker; all rows are on policy", State.GOOD
    return f"no marker; rows are up to {count(max(behind), 'version')} behind", State.GOOD


def _facts(selection: Selection) -> list[str]:
    rows = [tag for tag in selection.tags(selection.rows) if not tag.get("is_padding")]
    mixed = sum(tag.get("min_global_steps") != tag.get("max_global_steps") for tag in rows)
    return [count(len(rows), "row"), f"{mixed:,} written by several weight versions"] if rows else []


def _markers(selection: Selection, names: ShortNames, now: int, policy: Policy) -> Table:
    statuses = list(STATUS_STATES)
    columns = (
        Column("spans", align="right", hover="weight versions: step - submitted at + 1"),
        Column("prompts", align="right"),
        *(Column(status, align="right") for status in statuses),
        Column("what happens"),
        Column("uids", flow=True),
    )
    return Table(
        columns,
        tuple(_marker_row(age, members, names, statuses, policy) for age, members in _ages(selection, now).items()),
        cell("prompt markers by age", State.STRONG),
        2,
        "ages",
    )


def _marker_row(
    age: int, members: Sequence[tuple[str, str]], names: ShortNames, statuses: Sequence[str], policy: Policy
) -> tuple[Cell, ...]:
    counts = Counter(status for _, status in members)
    hit = [status for status in statuses if counts[status] and policy.verdict(status, age)]
    fate = cell(_fate(hit, len(counts), age, policy), State.WARN) if hit else cell("-", State.DIM)
    numbers = [cell(f"{counts[s]:,}", STATUS_STATES[s]) if counts[s] else cell("-", State.DIM) for s in statuses]
    uids = names.spans([key for key, _ in members], NUM_UIDS)
    return (
        cell(age, State.WARN if hit else State.PLAIN),
        cell(f"{len(members):,}"),
        *numbers,
        fate,
        Cell(tuple(uids)),
    )


def _fate(hit: Sequence[str], num_statuses: int, age: int, policy: Policy) -> str:
    """`dropped`, or `finished: dropped` where prompts of the same age and another status stay."""
    fate = policy.verdict(hit[0], age)
    return fate if len(hit) == num_statuses else f"{' and '.join(hit)}: {fate}"


def _rows(selection: Selection, names: ShortNames, weights: int) -> Table:
    by_versions: dict[tuple[Any, Any], list[str]] = {}
    for key, tag in zip(selection.keys(selection.rows), selection.tags(selection.rows), strict=True):
        if not tag.get("is_padding"):
            by_versions.setdefault((tag.get("min_global_steps"), tag.get("max_global_steps")), []).append(key)
    known = {pair: keys for pair, keys in by_versions.items() if all(isinstance(step, int) for step in pair)}
    unknown = [key for pair, keys in by_versions.items() if pair not in known for key in keys]
    columns = (
        Column("versions"),
        Column("rows", align="right"),
        Column("behind", align="right", hover=BEHIND.format(weights)),
        Column("what it means"),
        Column("keys", flow=True),
    )
    rows = [_row_line(pair, known[pair], names, weights) for pair in sorted(known)]
    if unknown:
        said = cell("no weight version in the tag", State.WARN)
        rows.append((cell("?"), cell(f"{len(unknown):,}"), cell("-"), said, _named(names, unknown)))
    return Table(columns, tuple(rows), cell("rows by the weights that wrote them", State.STRONG), 2, "versions")


def _row_line(pair: tuple[int, int], keys: list[str], names: ShortNames, weights: int) -> tuple[Cell, ...]:
    oldest, newest = pair
    mixed = newest > oldest
    said = f"interrupted by {count(newest - oldest, 'weight sync')}" if mixed else "one version"
    said += f", newer than this step: v{newest} is for step {newest + 1}" if newest > weights else ""
    label = f"v{oldest}..v{newest}" if mixed else f"v{oldest}"
    state = State.WARN if mixed else State.PLAIN
    behind = f"{weights - newest}..{weights - oldest}" if mixed else str(weights - oldest)
    return (cell(label, state), cell(f"{len(keys):,}"), cell(behind), cell(said, state), _named(names, keys))


def _named(names: ShortNames, keys: list[str]) -> Cell:
    return Cell(tuple(names.spans(keys, NUM_UIDS)))
