"""Notebook 02: one batch on both roads, as a padded DataProto and as keys of rows in the queue.

same_order                the handle of V1 in the order of the rows of V0
num_bytes                 what the tensors of a DataProto weigh
draw_cells                prompt, model, tool and padding, a line a row
check_row_score           which score has a row after a reorder, on each road?
check_num_padding         how many numbers of a padded column are padding?
misjoin_scores            two rows of a DataProto with each other's scores; find the one that gives it away
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Any

from tensordict import TensorDict
from torch import Tensor

from kitlib.inspector.render.wording import count
from kitlib.inspector.values import INSPECTOR
from kitlib.keys import TrajectoryKey
from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.reading import number_of
from kitlib.trainer.v0 import DataProto
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, acting_as, lengths
from kitlib.workers.bridge import partition_of


def same_order(data: DataProto, tq: QueueProtocol, batch: KVBatchMeta) -> KVBatchMeta:
    """The keys of `batch` in the order of the rows of `data`: row by row the same dataset index and session."""
    names = ("index", "session_id")
    columns = look(tq, batch, *names)
    key_of = dict(zip(zip(*(columns.get(name).tolist() for name in names), strict=True), batch.keys, strict=True))
    infos, sessions = (data.non_tensor_batch[name] for name in ("extra_info", "session_id"))
    return batch.select_keys([key_of[info["index"], session] for info, session in zip(infos, sessions, strict=True)])


def look(tq: QueueProtocol, batch: KVBatchMeta, *fields: str) -> TensorDict:
    """A get by the keys of a batch, of all fields if none is named, that the views of the log do not count."""
    with acting_as(stage=INSPECTOR):
        return tq.kv_batch_get(batch.keys, partition_of(batch), list(fields) or None)


def num_bytes(data: DataProto) -> int:
    """Bytes of all tensors, padding included; Python objects do not count."""
    columns = {} if data.batch is None else dict(data.batch.items())
    return sum([column.nbytes for column in columns.values() if isinstance(column, Tensor)])


# The picture

PARTS = {"p": ("prompt", "#0072b2"), "m": ("model", "#e69f00"), "t": ("tool", "#009e73"), ".": ("padding", "none")}
CELL, LINE, TOP = 5, 7, 18  # pixels


@dataclass(frozen=True)
class Cells:
    """Every token of a batch as one letter: p prompt, m model, t tool, . padding. Shown as a picture in a notebook."""

    rows: tuple[str, ...]

    def __str__(self) -> str:
        total, num_padding = sum(map(len, self.rows)), sum(row.count(".") for row in self.rows)
        share = f"{num_padding / total:.0%} of them padding" if num_padding else "no padding"
        return f"{count(len(self.rows), 'row')}, {total} cells, {share}"

    def __repr__(self) -> str:
        return "\n".join([str(self), *self.rows, "p prompt  m model  t tool  . padding"])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.svg()}

    def svg(self) -> str:
        """The picture as one SVG element."""
        width, height = max(map(len, self.rows)) * CELL + 2, len(self.rows) * LINE + 2 * TOP + 4
        head = f'<text x="0" y="12" style="fill:currentColor">{escape(str(self))}</text>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, 380)}" height="{height}" '
            f'style="font:12px/1 sans-serif">{head}{"".join(self._runs())}{"".join(self._legend(height - 4))}</svg>'
        )

    def _runs(self) -> Iterator[str]:
        for number, row in enumerate(self.rows):
            start = 0
            for letter, run in groupby(row):
                length = len(list(run))
                yield _rect(start * CELL + 1, TOP + number * LINE, length * CELL, LINE - 1, letter)
                start += length

    def _legend(self, y: int) -> Iterator[str]:
        for number, (letter, (word, _)) in enumerate(PARTS.items()):
            yield _rect(number * 80 + 1, y - 8, 10, 8, letter)
            yield f'<text x="{number * 80 + 16}" y="{y}" style="fill:currentColor">{word}</text>'


def draw_cells(data: DataProto | TensorDict) -> Cells:
    """Who wrote each token: of a DataProto, or of a read from the queue with `prompts` and `response_mask`."""
    return Cells(tuple(_padded_rows(data) if isinstance(data, DataProto) else _jagged_rows(data)))


def _padded_rows(data: DataProto) -> Iterator[str]:
    assert data.batch is not None
    names = ("attention_mask", "response_mask", "prompts")
    attended, of_model, prompts = (data.batch[name] for name in names)
    width = prompts.shape[1]
    for attend, own in zip(attended.tolist(), of_model.tolist(), strict=True):
        letters = ["p"] * width + ["m" if one else "t" for one in own]
        yield "".join(letter if one else "." for letter, one in zip(letters, attend, strict=True))


def _jagged_rows(data: TensorDict) -> Iterator[str]:
    for num_prompt, own in zip(lengths(data["prompts"]).tolist(), data["response_mask"].unbind(), strict=True):
        yield "p" * num_prompt + "".join("m" if one else "t" for one in own.tolist())


def _rect(x: int, y: int, width: int, height: int, letter: str) -> str:
    fill = PARTS[letter][1]
    edge = "stroke:currentColor;stroke-opacity:.35;stroke-width:.6" if fill == "none" else "stroke:none"
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" style="fill:{fill};{edge}"/>'


# Predictions


def check_row_score(on_v0: Any, on_v1: Any, data: DataProto, tq: QueueProtocol, uid: str) -> Answer:
    """Which number is in the column `score` of the row of `uid`: in the DataProto, and in the queue?"""
    if unanswered(on_v0, on_v1):
        return open_answer()
    assert data.batch is not None
    uids, scores = data.non_tensor_batch["uid"].tolist(), data.batch["score"].tolist()
    own = _score_in_queue(tq, uid)
    now = scores[uids.index(uid)]
    wrong = [] if number_of(on_v0) == now else [_why_not(on_v0, own, scores, uids, uid)]
    if number_of(on_v1) not in scores:
        wrong.append(f"V1, not {on_v1!r}: {_choice(scores)}")
    elif number_of(on_v1) != own:
        wrong.append(f"V1, not {on_v1}: the put names its keys, so the order of the handle does not matter to it")
    if wrong:
        return mistakes(wrong)
    return right(f"V0 gives {uid} the score {now:g}, V1 gives it {own:g}, and neither of them raises an error")


def _score_in_queue(tq: QueueProtocol, uid: str) -> float:
    key = str(TrajectoryKey(uid, 0, 0))
    return tq.kv_batch_get(keys=[key], partition_id="train", select_fields=["score"])["score"].item()


def _why_not(said: Any, own: float, scores: list[float], uids: list[str], uid: str) -> str:
    number = number_of(said)
    if number == own:
        return f"V0, not {said}: union does not look for {uid}. It puts the first score beside the first row, and so on"
    if number in scores:
        return f"V0, not {said}: that is the score of {uids[scores.index(number)]} now. Which row is the first one now?"
    return f"V0, not {said!r}: {_choice(scores)}"


def _choice(scores: list[float]) -> str:
    return f"the scores are {', '.join(f'{score:g}' for score in sorted(scores))}, and the answer is one of them"


def check_num_padding(answer: Any, data: DataProto) -> Answer:
    """How many numbers of the column `input_ids` are padding?"""
    if unanswered(answer):
        return open_answer()
    assert data.batch is not None
    attended: Tensor = data.batch["attention_mask"]
    num_cells, num_tokens = attended.numel(), int(attended.sum())
    said, num_padding = number_of(answer), num_cells - num_tokens
    if said == num_padding:
        return right(f"{num_cells} cells, of which {num_tokens} are tokens and {num_padding} are padding")
    if said == num_tokens:
        return mistakes([f"{answer} cells hold a token; the question is how many do not"])
    prompt_width = data.batch["prompts"].shape[1]
    parts = attended.split([prompt_width, attended.shape[1] - prompt_width], dim=1)
    if said == sum(int(part.sum(dim=1).max()) * len(part) - int(part.sum()) for part in parts):
        return mistakes(
            [f"{answer} would fill up to the longest row of the batch; V0 fills up to the configured width"]
        )
    if said in [part.numel() - int(part.sum()) for part in parts]:
        return mistakes([f"{answer} is one side: prompts are filled on the left, responses on the right; count both"])
    return mistakes([f"not {answer}: cells are rows times (prompt width + response width); take the tokens away"])


# Something to find


@dataclass
class Misjoined:
    """Two rows of a DataProto hold each other's `rm_scores`; `row` has the score that is not its own."""

    data: DataProto = field(repr=False)
    row: int = field(repr=False)
    owner: int = field(repr=False)

    def reveal(self) -> str:
        """What was done, in one sentence."""
        return f"row {self.row} holds the score of row {self.owner}"

    def mend(self) -> None:
        """Give both rows their own scores back."""
        _swap(self.data, self.row, self.owner)

    def check(self, row: Any) -> Answer:
        """Is this the row whose score belongs to another?"""
        if unanswered(row):
            return open_answer()
        said = number_of(row)
        if said is None or said not in range(len(self.data)):
            return mistakes([f"row is a number from 0 to {len(self.data) - 1}, not {row!r}"])
        return right(self.reveal()) if said == self.row else mistakes([self._why_not(int(said))])

    def _why_not(self, row: int) -> str:
        if row == self.owner:
            return f"row {row} has lost its score, and a row of zeros looks healthy: where did the score go?"
        assert self.data.batch is not None
        if not self.data.batch["rm_scores"][row].any():
            return f"row {row} has no score at all: zeros do not say whose they are, look at rows with a 1"
        return f"row {row} is healthy: its score stands on its last token"


def misjoin_scores(data: DataProto, seed: int = 0) -> Misjoined:
    """A row with a reward and a row without one, of another length, get each other's scores, as after a reorder."""
    assert data.batch is not None
    rewarded = data.batch["rm_scores"].sum(dim=1).gt(0).tolist()
    sizes = data.batch["attention_mask"][:, data.batch["prompts"].shape[1] :].sum(dim=1).tolist()
    rows = range(len(data))
    pairs = [(i, j) for i in rows for j in rows if rewarded[i] and not rewarded[j] and sizes[i] < sizes[j]]
    pairs = pairs or [(i, j) for i in rows for j in rows if rewarded[i] and not rewarded[j] and sizes[i] != sizes[j]]
    owner, row = random.Random(seed).choice(pairs)
    _swap(data, row, owner)
    return Misjoined(data, row, owner)


def _swap(data: DataProto, one: int, other: int) -> None:
    assert data.batch is not None
    scores = data.batch["rm_scores"].clone()
    scores[[one, other]] = scores[[other, one]]
    data.batch["rm_scores"] = scores
