"""The tokens of one trajectory: which tokens are trained, and how hard?

verl 0.9.1 has no counterpart (log_rollout_data writes whole texts). Left out: the ratio of the policy update and
whether it is clipped; the log-probs of the policy being updated never reach the queue.

    f3a1_3_0  reward 1  advantage +0.72  trained 14 of 31 tokens
    pos     who     text
    0..10   prompt  user: 12*59=?
    11..18  model   <tool_call>12*59</tool_call>
    19..21  tool    708
    pos  token  id  who    rollout   old     old/rollout  advantages
     11  <tool_call>  model  -0.021  -0.020  1.001        +0.720
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.inspector.selection import select
from kitlib.inspector.source import Source, snapshot_of
from kitlib.inspector.tags import describe_tags
from kitlib.inspector.trajectory import Role, Run, Tokenizer, Trajectory, read_trajectory
from kitlib.inspector.view import PAGE_BUDGET, View

ROLES: dict[Role, State] = {"prompt": State.DIM, "model": State.HIGH, "tool": State.LOW, "padding": State.WARN}
SHORT = {"rollout_log_probs": "rollout", "old_log_probs": "old", "ref_log_prob": "ref"}
MAX_TEXT = 600  # characters of one run


def tokens(
    source: Source,
    key: str,
    tokenizer: Tokenizer | None = None,
    partition_id: str = "train",
    *,
    budget: int = PAGE_BUDGET,
) -> View:
    """One trajectory: runs of prompt, model and tool tokens, then every trained token with its numbers.

    source:    a queue; reads prompts, responses, response_mask, the log-probs, values, advantages and rm_scores of
               one row.
    tokenizer: makes text of ids and checks that encoding the text gives the same ids; without one, ids are shown.
    Raises NoTokensError naming the key and what it has, NoSuchPartitionError.
    """
    snapshot = snapshot_of(source)
    partition = select(snapshot, partition_id).partition
    row = read_trajectory(source, partition, key)
    names, words = ShortNames.of(snapshot), _Words(tokenizer)
    misfits = [
        cell(f"{field} has {count(length, 'value')} for {count(len(row.responses), 'response token')}", State.BAD)
        for field, length in row.misfits.items()
    ]
    notes = [words.retokenised(row), "" if tokenizer else "no tokenizer given: tokens are shown as ids", names.note()]
    model = ViewModel(
        headline=Cell((names.span(key, State.STRONG), *_headline(row).spans)),
        facts=cell(describe_tags([partition.tag_of(key)]), State.DIM),
        tables=(_runs(row, words), *_numbers(row, words)),
        notes=(*misfits, *(cell(note, State.DIM) for note in notes if note)),
    )
    return View(model, budget)


def _headline(row: Trajectory) -> Cell:
    num_trained = 0 if row.is_padding else sum(map(bool, row.mask))
    reward = f"reward {sum(row.numbers['rm_scores']):.4g}" if "rm_scores" in row.numbers else "no reward yet"
    first = row.mask.index(1) if 1 in row.mask else None
    advantage = row.number("advantages", first) if "advantages" in row.numbers and first is not None else None
    said = f"advantage {advantage:+.2f}" if advantage is not None else ""
    total = count(len(row.prompts) + len(row.responses), "token")
    return line(reward, said, (f"trained {num_trained} of {total}", State.GOOD if num_trained else State.WARN))


class _Words:
    """Tokens as text, or as ids where there is no tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer

    def text(self, ids: Sequence[int]) -> str:
        shown = self.tokenizer.decode(list(ids)) if self.tokenizer else " ".join(map(str, ids))
        left_out = len(shown) - MAX_TEXT
        return shown if left_out <= 0 else f"{shown[:MAX_TEXT]}.. (+{left_out:,} characters)"

    def token(self, token_id: int) -> str:
        return self.text([token_id]).replace(" ", "␣")

    def retokenised(self, row: Trajectory) -> str:
        """Does the text of the response give the same ids again? A tool that rebuilt ids from text trained on
        others."""
        if self.tokenizer is None or not row.responses:
            return ""
        again = self.tokenizer.encode(self.tokenizer.decode(list(row.responses)), add_special_tokens=False)
        if tuple(again) == row.responses:
            return f"encoding the text of the response gives the same {count(len(again), 'id')}"
        pairs = zip(again, row.responses, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(again), len(row.responses)))
        where = f"first difference at pos {len(row.prompts) + same}"
        return f"encoding the text of the response gives {count(len(again), 'id')} for {len(row.responses)}: {where}"


def _positions(run: Run) -> str:
    return f"{run.start}..{run.start + len(run.ids) - 1}" if len(run.ids) > 1 else str(run.start)


def _runs(row: Trajectory, words: _Words) -> Table:
    columns = (Column("pos"), Column("who"), Column("tokens", align="right"), Column("text", flow=True))
    rows = tuple(
        (cell(_positions(run)), cell(run.role), cell(len(run.ids)), cell(words.text(run.ids), ROLES[run.role]))
        for run in row.runs
    )
    return Table(columns, rows, num_fixed=2, row_noun="runs")


def _numbers(row: Trajectory, words: _Words) -> list[Table]:
    """A line for every token that the model wrote, one for every run of tool tokens between them."""
    fields = list(row.numbers)
    both = {"rollout_log_probs", "old_log_probs"} <= set(fields)
    heads = [SHORT.get(field, field) for field in fields] + (["old/rollout"] if both else [])
    numbers = [Column(name, align="right") for name in heads]
    columns = (Column("pos"), Column("token"), Column("id", align="right"), Column("who"), *numbers)
    rows = [one for run in row.runs if run.role in ("model", "tool") for one in _lines(row, run, words, fields, both)]
    return [Table(columns, tuple(rows), num_fixed=2, row_noun="lines")] if rows and fields else []


def _lines(row: Trajectory, run: Run, words: _Words, fields: list[str], both: bool) -> list[tuple[Cell, ...]]:
    num_numbers = len(fields) + both
    if run.role == "tool":
        blank = [cell("-", State.DIM)] * num_numbers
        what = cell(f"({count(len(run.ids), 'token')}, not trained)", State.DIM)
        return [(cell(_positions(run)), what, cell("-", State.DIM), cell("tool", State.DIM), *blank)]
    lines = []
    for offset, token_id in enumerate(run.ids):
        at = run.start + offset - len(row.prompts)
        values = [row.number(field, at) for field in fields]
        if both:
            old, rollout = row.number("old_log_probs", at), row.number("rollout_log_probs", at)
            values.append(math.exp(old - rollout) if old is not None and rollout is not None else None)
        numbers = [_number(value) for value in values]
        token = cell(words.token(token_id), ROLES["model"])
        lines.append((cell(run.start + offset), token, cell(token_id), cell("model"), *numbers))
    return lines


def _number(value: float | None) -> Cell:
    if value is None:
        return cell("missing", State.BAD)
    return cell("nan" if math.isnan(value) else f"{value:.3f}", State.BAD if math.isnan(value) else State.PLAIN)
