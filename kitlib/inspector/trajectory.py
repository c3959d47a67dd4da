"""One trajectory taken apart: which token is whose, and the numbers that belong to it.

verl 0.9.1: experimental/agent_loop/agent_loop.py, AgentLoopOutput (prompts, responses, response_mask: 1 where the
model wrote the token). Lengths of different fields of one row are never compared by the store (TransferQueue 0.1.11),
so they are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, Protocol

import torch

from kitlib.errors import KitError
from kitlib.inspector.source import Source
from kitlib.inspector.values import read_columns
from kitlib.transfer_queue import PartitionSnapshot

Role = Literal["prompt", "model", "tool", "padding"]
NUMBERS = (
    *("rollout_log_probs", "old_log_probs", "ref_log_prob", "update_log_probs"),
    *("values", "advantages", "rm_scores", "loss_share"),
)


class NoTokensError(KitError):
    """A row whose tokens cannot be shown: it is not there, it has none, or only a snapshot was handed in."""


class Tokenizer(Protocol):
    """What is needed of a tokenizer (any of transformers will do)."""

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens of one role; `start` is the position in prompts + responses."""

    role: Role
    start: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Trajectory:
    """The tokens of a row. numbers: field -> one value a response token; a field of another length is in `misfits`
    too."""

    prompts: tuple[int, ...]
    responses: tuple[int, ...]
    mask: tuple[int, ...]
    numbers: dict[str, tuple[float, ...]]
    misfits: dict[str, int]
    is_padding: bool

    @property
    def runs(self) -> list[Run]:
        """The prompt, then the response cut where the mask changes."""
        if self.is_padding:
            return [Run("padding", 0, (*self.prompts, *self.responses))]
        runs = [Run("prompt", 0, self.prompts)] if self.prompts else []
        position = len(self.prompts)
        padded = (*self.mask, *[0] * len(self.responses))
        for by_model, members in groupby(zip(self.responses, padded, strict=False), key=lambda pair: bool(pair[1])):
            ids = tuple(token for token, _ in members)
            runs.append(Run("model" if by_model else "tool", position, ids))
            position += len(ids)
        return runs

    def number(self, field: str, response_position: int) -> float | None:
        """The value of a field at a response token, None beyond its end."""
        values = self.numbers[field]
        return values[response_position] if response_position < len(values) else None


def read_trajectory(source: Source, partition: PartitionSnapshot, key: str) -> Trajectory:
    """Read the token fields of one row with one small get. Raises NoTokensError."""
    if not hasattr(source, "kv_batch_get"):
        raise NoTokensError(
            f"the tokens of {key!r} are values, and a snapshot holds none: pass the queue, or a recording with values "
            "(kitlib.record_values=[prompts,responses,response_mask])"
        )
    if key not in partition:
        raise NoTokensError(f"no key {key!r} in partition {partition.partition_id!r} ({len(partition.keys)} keys)")
    wanted = ("prompts", "responses", "response_mask", *NUMBERS)
    columns, note = read_columns(source, partition, [key], wanted)
    if "responses" not in columns:
        has = ", ".join(partition.fields_of(key)) or "no field"
        raise NoTokensError(f"{key!r} has no responses to show{f' ({note})' if note else ''}; it has {has}")

    def row(field: str) -> list[float]:
        return columns[field][key].to(torch.float64).tolist() if field in columns else []

    lengths = {field: len(row(field)) for field in ("response_mask", *NUMBERS) if field in columns}
    num_responses = len(row("responses"))
    return Trajectory(
        prompts=tuple(map(int, row("prompts"))),
        responses=tuple(map(int, row("responses"))),
        mask=tuple(map(int, row("response_mask"))),
        numbers={field: tuple(row(field)) for field in NUMBERS if field in columns},
        misfits={field: length for field, length in lengths.items() if length != num_responses},
        is_padding=bool(partition.tag_of(key).get("is_padding")),
    )
