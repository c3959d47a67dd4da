"""The group board: which groups teach something?

verl 0.9.1 has no counterpart; the numbers are GRPO's (kitlib.inspector.groups names the sources). A group teaches
when its sessions earned different rewards. What the sampler will drop is marked as far as the config tells: constant
groups (algorithm.filter_groups with metric reward) and old ones (trainer.v1.sampler). Left out: other metrics.

    uid   state     sessions (reward)                size  mean   std    remark
    f3a1  finished  [1] [0] [1] [1] [0] [0] [1] [1]  8/8   0.625  0.518
    9c02  finished  [0] [0] [0] [0] [0] [0] [0] [0]  8/8   0.000  0.000  no signal: all equal
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kitlib.inspector.group_remarks import Rules, remarks
from kitlib.inspector.groups import Group, Session, groups_of
from kitlib.inspector.markers import STATUS_STATES, stray_note
from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Span, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count, listed
from kitlib.inspector.selection import Filter, select
from kitlib.inspector.source import Source, snapshot_of
from kitlib.inspector.values import read_columns
from kitlib.inspector.view import PAGE_BUDGET, View, max_rows
from kitlib.keys import is_trajectory_key

if TYPE_CHECKING:
    from kitlib.transfer_queue import KVBatchMeta

MAX_ON_ONE_LINE = 12  # sessions; longer lists are broken
FIELDS_READ = ("rm_scores", "response_mask", "advantages")


def group_board(
    source: Source,
    n: int | None = None,
    config: Any = None,
    partition_id: str = "train",
    batch: KVBatchMeta | None = None,
    *,
    title: str = "",
    uid: str | None = None,
    status: str | None = None,
    global_steps: int | None = None,
    budget: int = PAGE_BUDGET,
) -> View:
    """One line a uid: its sessions with their rewards, size, length, mean, std, advantage, and what is odd about it.

    source: a queue (reads rm_scores, response_mask, advantages of the rows, once) or a QueueSnapshot (no values:
        rewards stay open).
    n:      sessions a prompt should have; None takes actor_rollout_ref.rollout.n of the config, or leaves short
            groups unmarked.
    batch:  only the keys of this handle. uid: the beginning of a uid. status: the status of the marker, `sampled`
            when it is gone.
    global_steps: the trainer's step; groups that are too old for the sampler of `config` are then marked.
    Raises NoSuchPartitionError.
    """
    snapshot = snapshot_of(source)
    selection = select(snapshot, (batch.partition_id if batch is not None else None) or partition_id, batch)
    columns, note = read_columns(source, selection.partition, selection.keys(selection.rows), FIELDS_READ)
    board = _Board(groups_of(selection, columns), Rules.of(config, n, global_steps), ShortNames.of(snapshot))
    keep = Filter(uid=uid)
    shown = [group for group in board.groups if keep.keeps(group.uid, {}) and status in (None, _state_of(group))]
    odd = [key for key in selection.keys(selection.rows) if not is_trajectory_key(key)]
    notes = [note, _odd_note(odd, board.names), stray_note(selection, board.names), board.names.note()]
    if len(shown) < len(board.groups):
        notes.insert(0, f"showing {len(shown)} of {count(len(board.groups), 'uid')} because of the filter")
    head = line((selection.partition.partition_id, State.STRONG), board.verdict())
    facts = line(title, *[(fact, State.DIM) for fact in board.facts(selection.absent)])
    return View(
        ViewModel(
            head,
            facts,
            board.tables(shown, max_rows(budget)),
            notes=tuple(cell(text, State.DIM) for text in notes if text),
        ),
        budget,
    )


def _state_of(group: Group) -> str:
    return "padding" if group.is_padding else group.status or "sampled"


def _odd_note(keys: list[str], names: ShortNames) -> str:
    if not keys:
        return ""
    named = listed([names.key(key) for key in keys])
    return f"{count(len(keys), 'row')} left out, the key is not uid_session_index: {named}"


class _Board:
    """The groups and how each is said."""

    def __init__(self, groups: list[Group], rules: Rules, names: ShortNames) -> None:
        self.groups, self.rules, self.n, self.names = groups, rules, rules.n, names
        self.has_advantages = any(session.advantage is not None for group in groups for session in group.sessions)

    # ------------------------------------------------------------------------------------------------------ first line

    def verdict(self) -> tuple[str, State]:
        scored = [group for group in self.groups if group.rewards and not group.is_padding]
        if not scored:
            return "no group has a reward yet", State.WARN
        teaching = sum(group.teaches for group in scored)
        counts = {
            "no signal": sum(group.is_flat for group in scored),
            "single row": sum(len(group.sessions) == 1 for group in scored),
            "short": sum(bool(group.missing_sessions(self.n)) for group in scored),
            "with NaN": sum(group.is_nan for group in scored),
            "filtered by DAPO": sum(self.rules.is_filtered(group) for group in scored),
            "stale": sum(bool(self.rules.fate_by_age(group)) for group in self.groups),
        }
        odd = "".join(f"; {number} {word}" for word, number in counts.items() if number)
        state = State.GOOD if teaching == len(scored) else State.WARN if teaching else State.BAD
        return f"{teaching} of {count(len(scored), 'group')} teach something{odd}", state

    def facts(self, absent: tuple[str, ...]) -> list[str]:
        real = [group for group in self.groups if not group.is_padding]
        rewards = [reward for group in real for reward in group.rewards if not math.isnan(reward)]
        facts = [count(sum(group.num_rows for group in real), "row"), f"n {self.n}" if self.n else ""]
        facts += [f"mean reward {sum(rewards) / len(rewards):.3f}"] if rewards else []
        padding = sum(group.num_rows for group in self.groups if group.is_padding)
        facts += [f"{count(padding, 'padding row')}" if padding else ""]
        return [*facts, f"{count(len(absent), 'key')} of the batch not in the queue" if absent else ""]

    # ---------------------------------------------------------------------------------------------------------- table

    def tables(self, groups: list[Group], limit: int) -> tuple[Table, ...]:
        if not groups:
            return ()
        columns = (
            Column("uid"),
            Column("sessions (reward)", flow=max(len(group.sessions) for group in groups) > MAX_ON_ONE_LINE),
            Column("size", align="right"),
            Column("mean", align="right"),
            Column("std", align="right", hover="divides by n - 1, as GRPO does"),
            Column("adv used" if self.has_advantages else "adv to come"),
            Column("remark", flow=True),
            Column("state"),
            Column("length", align="right", hover="response tokens"),
            Column("std/n", align="right", hover="divides by n"),
        )
        rows = tuple(self._row(group) for group in groups[:limit])
        return (Table(columns, rows, row_noun="uids", num_rows=len(groups)),)

    def _row(self, group: Group) -> tuple[Cell, ...]:
        state, short = _state_of(group), self.names.uid(group.uid)
        return (
            cell(short, State.STRONG, group.uid if short != group.uid else ""),
            self._sessions(group),
            cell(f"{len(group.sessions)}/{self.n}" if self.n and not group.is_padding else len(group.sessions)),
            cell(_number(group.mean)),
            cell(_number(group.std())),
            self._advantages(group),
            remarks(group, self.rules, self.names),
            cell(state, STATUS_STATES.get(state, State.DIM)),
            cell(_range([session.length for session in group.sessions if session.length is not None])),
            cell(_number(group.std(ddof=0) if len(group.rewards) > 1 else math.nan), State.DIM),
        )

    def _sessions(self, group: Group) -> Cell:
        there = {session.session_id: session for session in group.sessions}
        numbers = sorted({*there, *([] if group.is_padding else range(self.n or 0))})
        return Cell(tuple(_chip(there.get(number), group.mean) for number in numbers))

    def _advantages(self, group: Group) -> Cell:
        used = [session.advantage for session in group.sessions if session.advantage is not None]
        values = used if self.has_advantages else group.expected_advantages()
        distinct = sorted({round(value, 2) for value in values if not math.isnan(value)}, reverse=True)
        if len(distinct) < 3:
            return cell(" / ".join(f"{value:+.2f}" if value else "0" for value in distinct) or "-")
        return cell(f"{distinct[0]:+.2f} .. {distinct[-1]:+.2f}")


def _chip(session: Session | None, mean: float) -> Span:
    """`[1]`, `[0.5]x3` with three outputs, `[?]` without a reward, `-` for a session that is not there."""
    if session is None:
        return Span(" - ", State.DIM)
    times = f"x{session.num_outputs}" if session.num_outputs > 1 else ""
    if session.reward is None:
        return Span(f"[?]{times}", State.DIM, session.key)
    state = (
        State.PLAIN
        if math.isnan(mean) or session.reward == mean
        else State.HIGH
        if session.reward > mean
        else State.LOW
    )
    return Span(f"[{session.reward:.3g}]{times}", State.BAD if math.isnan(session.reward) else state, session.key)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _range(values: list[int]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}..{high}"
