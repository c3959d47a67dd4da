"""How update_actor cuts a balanced batch: a slice a rank, mini-batches of a slice, micro-batches of a mini-batch.

verl 0.9.1: workers/engine_workers.py and utils/seqlen_balancing.py. The same cuts as kitlib's actor makes, told from
keys and tags alone: an inspector looks at a batch whose workers may be on other machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kitlib.errors import KitError
from kitlib.inspector.render.wording import count
from kitlib.inspector.settings import setting

ACTOR = "actor_rollout_ref.actor"


class UnevenBatchError(KitError):
    """A batch that does not divide by ranks or mini-batches."""


@dataclass(frozen=True)
class Cut:
    """How a batch is cut. mini_batch_size: rows over all ranks. None: the batch is one mini-batch, a mini-batch one
    micro-batch."""

    dp_size: int = 1
    mini_batch_size: int | None = None
    micro_batch_size: int | None = None
    max_token_len: int | None = None

    @classmethod
    def of(cls, config: Any, dp_size: int) -> Cut:
        """The cut of update_actor under a config."""
        num_prompts = setting(config, f"{ACTOR}.ppo_mini_batch_size")
        dynamic = setting(config, f"{ACTOR}.use_dynamic_bsz", False)
        return cls(
            dp_size,
            num_prompts * setting(config, "actor_rollout_ref.rollout.n", 1) if num_prompts else None,
            None if dynamic else setting(config, f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
            setting(config, f"{ACTOR}.ppo_max_token_len_per_gpu") if dynamic else None,
        )


@dataclass(frozen=True)
class Row:
    """One row of the batch as far as its tag tells."""

    key: str
    seq_len: int
    is_padding: bool

    @property
    def load(self) -> int:
        return 24576 * self.seq_len + self.seq_len**2


@dataclass(frozen=True)
class Micro:
    """One forward and backward: rows padded to the longest."""

    rank: int
    mini: int
    micro: int
    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        return sum(row.seq_len for row in self.rows)

    @property
    def width(self) -> int:
        return max(row.seq_len for row in self.rows)

    @property
    def wasted(self) -> float:
        """Share of the padded rectangle that is padding."""
        return 1 - self.tokens / (self.width * len(self.rows))


def slices(rows: Sequence[Row], dp_size: int) -> list[Sequence[Row]]:
    """The r-th of dp_size equal slices for every rank r. Raises UnevenBatchError."""
    if dp_size < 1 or not rows or len(rows) % dp_size:
        raise UnevenBatchError(
            f"{count(len(rows), 'row')} do not divide by {count(dp_size, 'rank')}: balance_batch adds padding rows"
        )
    size = len(rows) // dp_size
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def micro_batches(rows: Sequence[Row], cut: Cut) -> Iterator[Micro]:
    """Every micro-batch, rank by rank. Raises UnevenBatchError."""
    for rank, own in enumerate(slices(rows, cut.dp_size)):
        per_rank = len(own) if cut.mini_batch_size is None else cut.mini_batch_size // cut.dp_size
        if per_rank < 1 or len(own) % per_rank:
            raise UnevenBatchError(
                f"{count(len(own), 'row')} of a rank do not make whole mini-batches of {cut.mini_batch_size} rows over "
                f"{count(cut.dp_size, 'rank')} ({ACTOR}.ppo_mini_batch_size * rollout.n): balance_batch adds padding "
                "rows"
            )
        for mini, start in enumerate(range(0, len(own), per_rank)):
            ordered = sorted(own[start : start + per_rank], key=lambda row: -row.seq_len)
            for micro, members in enumerate(_pieces(ordered, cut)):
                yield Micro(rank, mini, micro, tuple(members))


def _pieces(ordered: Sequence[Row], cut: Cut) -> Iterator[Sequence[Row]]:
    """Rows, longest first, cut by number or by padded tokens."""
    start = 0
    while start < len(ordered):
        size = cut.micro_batch_size or len(ordered)
        if cut.max_token_len is not None:
            size = cut.max_token_len // ordered[start].seq_len
            if size == 0:
                raise UnevenBatchError(
                    f"{ordered[start].key} has {ordered[start].seq_len} tokens, a micro-batch takes "
                    f"{cut.max_token_len}: raise {ACTOR}.ppo_max_token_len_per_gpu"
                )
        yield ordered[start : start + size]
        start += size
