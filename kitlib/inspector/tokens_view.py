"""The tokens of one trajectory: which tokens are trained, and how hard?

verl 0.9.1 has no counterpart (log_rollout_data writes whole texts, and the log-probs of an update never leave it: see
kitlib.record_update).

    f3a1_3_0  reward 1  advantage +0.72  trained 14 of 31 tokens  1 clipped  2.1% of the update
    pos     who     text
    0..10   prompt  user: 12*59=?
    11..18  model   <tool_call>12*59</tool_call>          on a page each token tells its numbers when pointed at
    19..21  tool    708
    pos  token  id  who    rollout   old     new    advantages  old/rollout  ratio          share
     11  <tool_call>  model  -0.021  -0.020  0.180  +0.720      1.001        1.221 clipped  0
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Span, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.render.wording import count
from kitlib.inspector.run_tokenizer import find_tokenizer, open_tokenizer
from kitlib.inspector.selection import select
from kitlib.inspector.source import Source, snapshot_of
from kitlib.inspector.tags import describe_tags
from kitlib.inspector.token_columns import NumberColumn, is_clipped, number_columns, percent
from kitlib.inspector.trajectory import Role, Run, Tokenizer, Trajectory, read_trajectory
from kitlib.inspector.view import PAGE_BUDGET, View

ROLES: dict[Role, State] = {"prompt": State.DIM, "model": State.HIGH, "tool": State.LOW, "padding": State.WARN}
MAX_TEXT = 600  # characters of one run
NUM_HOVERS = 150  # tokens that tell their numbers when pointed at: they take half of a page
GIVE_ONE = "give one: tokens(.., tokenizer=) takes the folder of a model or a tokenizer of transformers, kitlib inspect"
GIVE_ONE += " --tokenizer PATH the folder"
NOT_RECORDED = "ratio, clipped or not, and share of the update: run with kitlib.record_update=true"


def tokens(
    source: Source,
    key: str,
    tokenizer: Tokenizer | str | Path | None = None,
    partition_id: str = "train",
    *,
    config: Any = None,
    budget: int = PAGE_BUDGET,
) -> View:
    """One trajectory: runs of prompt, model and tool tokens, then every trained token with its numbers.

    source:    a queue; reads prompts, responses, response_mask, the log-probs, values, advantages, rm_scores and
               loss_share of one row.
    tokenizer: makes text of ids and checks that encoding the text gives the same ids: one of transformers, or the
               folder of a model. None: the one of the model that `config`, or the source if it is a recording, names;
               where that one is not on this machine, ids are shown.
    Raises NoTokensError naming the key and what it has, NoSuchPartitionError, NoTokenizerError for a path without one.
    """
    if isinstance(tokenizer, str | Path):
        tokenizer, said = open_tokenizer(tokenizer), f"text by the tokenizer of {tokenizer}"
    elif tokenizer is None:
        tokenizer, said = find_tokenizer(source, config)
    else:
        said = ""
    snapshot = snapshot_of(source)
    partition = select(snapshot, partition_id).partition
    row = read_trajectory(source, partition, key)
    names, words = ShortNames.of(snapshot), _Words(tokenizer)
    misfits = [
        cell(f"{field} has {count(length, 'value')} for {count(len(row.responses), 'response token')}", State.BAD)
        for field, length in row.misfits.items()
    ]
    columns = number_columns(row)
    notes = [
        words.retokenised(row),
        said if tokenizer else f"tokens are shown as ids: {said}; {GIVE_ONE}",
        NOT_RECORDED if "advantages" in row.numbers and "update_log_probs" not in row.numbers else "",
        names.note(),
    ]
    model = ViewModel(
        headline=Cell((names.span(key, State.STRONG), *_headline(row).spans)),
        facts=cell(describe_tags([partition.tag_of(key)]), State.DIM),
        tables=(_runs(row, words, columns), *_numbers(row, words, columns)),
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
    trained = (f"trained {num_trained} of {total}", State.GOOD if num_trained else State.WARN)
    return line(reward, said, trained, *_of_the_update(row))


def _of_the_update(row: Trajectory) -> list[tuple[str, State]]:
    """How many tokens are clipped, and how much of the update is the row's."""
    if "loss_share" not in row.numbers:
        return []
    num_clipped = sum(is_clipped(row, at) for at in range(len(row.responses)))
    share = sum(map(abs, row.numbers["loss_share"]))
    return [
        (f"{num_clipped} clipped" if num_clipped else "", State.WARN),
        (f"{percent(share).lstrip('+')} of the update", State.PLAIN),
    ]


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


def _runs(row: Trajectory, words: _Words, numbers: list[NumberColumn]) -> Table:
    columns = (Column("pos"), Column("who"), Column("tokens", align="right"), Column("text", flow=True))
    num_hovers, rows = NUM_HOVERS, []
    for run in row.runs:
        text = _strip(row, run, words, numbers, num_hovers) if run.role == "model" else _plain(run, words)
        num_hovers -= len(text.spans) if len(text.spans) > 1 else 0
        rows.append((cell(_positions(run)), cell(run.role), cell(len(run.ids)), text))
    return Table(columns, tuple(rows), num_fixed=2, row_noun="runs")


def _plain(run: Run, words: _Words) -> Cell:
    return cell(words.text(run.ids), ROLES[run.role])


def _strip(row: Trajectory, run: Run, words: _Words, numbers: list[NumberColumn], num_hovers: int) -> Cell:
    """The text of a run, a span a token; in one piece where tokens alone do not make the same text (half a letter)."""
    texts = [words.text([token_id]) for token_id in run.ids]
    glue = "" if words.tokenizer else " "
    if len(run.ids) > num_hovers or glue.join(texts) != words.text(run.ids):
        return _plain(run, words)
    spans = []
    for offset, text in enumerate(texts):
        at = run.start + offset - len(row.prompts)
        told = "  ".join(f"{column.name} {column.at(at)}" for column in numbers)
        state = State.WARN if is_clipped(row, at) else ROLES["model"]
        spans.append(Span(text, state, f"pos {run.start + offset}  id {run.ids[offset]}  {told}"))
    return Cell(tuple(spans), glue)


def _numbers(row: Trajectory, words: _Words, numbers: list[NumberColumn]) -> list[Table]:
    """A line for every token that the model wrote, one for every run of tool tokens between them."""
    heads = (Column(number.name, align="right", hover=number.hover) for number in numbers)
    columns = (Column("pos"), Column("token"), Column("id", align="right"), Column("who"), *heads)
    rows = [one for run in row.runs if run.role in ("model", "tool") for one in _lines(row, run, words, numbers)]
    return [Table(columns, tuple(rows), num_fixed=2, row_noun="lines")] if rows and numbers else []


def _lines(row: Trajectory, run: Run, words: _Words, numbers: list[NumberColumn]) -> list[tuple[Cell, ...]]:
    if run.role == "tool":
        blank = [cell("-", State.DIM)] * len(numbers)
        what = cell(f"({count(len(run.ids), 'token')}, not trained)", State.DIM)
        return [(cell(_positions(run)), what, cell("-", State.DIM), cell("tool", State.DIM), *blank)]
    lines = []
    for offset, token_id in enumerate(run.ids):
        at = run.start + offset - len(row.prompts)
        token = cell(words.token(token_id), ROLES["model"])
        values = (number.at(at) for number in numbers)
        lines.append((cell(run.start + offset), token, cell(token_id), cell("model"), *values))
    return lines
