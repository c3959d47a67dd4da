"""Rows in the layout that a forward pass takes: right-padded, cut into micro-batches of similar length.

verl 0.9.1: workers/utils/padding.py (no_padding_2_padding) and utils/seqlen_balancing.py (rearrange_micro_batches,
prepare_dynamic_batch), with the padded branch of workers/engine/fsdp/transformer_impl.py, prepare_model_inputs.

A row is prompt then response, S = P + R tokens. A causal model never looks ahead, so zeros on the right change
nothing for the tokens before them and no attention mask is needed:

    input_ids      p p p r r r r 0 0      [num_rows, max S]
    scored from        ^ ^ ^ ^            position t predicts token t + 1: [P - 1, S - 1)
    log_prob       . . . x x x x          as a response column [num_rows, max R]

Differs: verl packs a micro-batch into one long row for flash attention. Without that kernel a packed row needs a mask
of all tokens against all tokens: forward and backward of 128 rows of 25-50 tokens on one CPU core take 2.6 s packed,
0.23 s padded and 0.19 s padded in four pieces sorted by length. So rows are sorted before they are cut, which the
loss does not notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.transfer_queue.layout import lengths
from kitlib.workers.errors import WorkerError

SEQUENCE_COLUMNS = ("input_ids", "position_ids", "prompts", "responses")
"""What every pass over tokens reads."""


@dataclass(frozen=True)
class Rows:
    """Right-padded columns of some rows, all on one device."""

    sequence: dict[str, Tensor]
    """input_ids and position_ids, int64 [num_rows, max S]."""
    response: dict[str, Tensor]
    """Columns of responses, [num_rows, max R]: response_mask, advantages, ..."""
    prompt_lens: Tensor
    """P, int64 [num_rows]."""
    response_lens: Tensor
    """R, int64 [num_rows]."""
    numbers: Tensor
    """Which rows of the batch these are, int64 [num_rows]."""

    @classmethod
    def from_tensordict(cls, data: TensorDict, response_columns: Sequence[str], device: torch.device) -> Rows:
        """Read input_ids, position_ids, prompts, responses and `response_columns` of `data`, each jagged or dense."""
        missing = [name for name in (*SEQUENCE_COLUMNS, *response_columns) if name not in data.keys()]
        if missing:
            raise WorkerError(f"the batch lacks {', '.join(missing)}; it has {', '.join(map(str, data.keys()))}")
        response_lens = lengths(data["responses"]).to(device)
        prompt_lens = lengths(data["prompts"]).to(device)
        if (prompt_lens == 0).any():
            raise WorkerError(
                f"row {int((prompt_lens == 0).nonzero()[0])} has an empty prompt: the first response token is scored "
                "from the last prompt token, so `prompts` needs at least one"
            )
        rows = cls({}, {}, prompt_lens, response_lens, torch.arange(len(prompt_lens), device=device))
        for name in ("input_ids", "position_ids"):
            rows.sequence[name] = _filled(name, data[name].to(device), rows.seq_lens)
        rows.sequence["position_ids"] = _continued(rows.sequence["position_ids"], rows.seq_lens)
        for name in response_columns:
            rows.response[name] = _filled(name, data[name].to(device), response_lens)
        return rows

    def __len__(self) -> int:
        return len(self.prompt_lens)

    @property
    def seq_lens(self) -> Tensor:
        """S = P + R, int64 [num_rows]."""
        return self.prompt_lens + self.response_lens

    def take(self, index: Tensor) -> Rows:
        """The rows of `index` int64 [k], cut to their own longest sequence and response."""
        prompt_lens, response_lens = self.prompt_lens[index], self.response_lens[index]
        max_seq, max_response = int((prompt_lens + response_lens).max()), int(response_lens.max())
        return Rows(
            sequence={name: column[index, :max_seq] for name, column in self.sequence.items()},
            response={name: column[index, :max_response] for name, column in self.response.items()},
            prompt_lens=prompt_lens,
            response_lens=response_lens,
            numbers=self.numbers[index],
        )

    def response_grid(self) -> Tensor:
        """True on the response tokens of each row, bool [num_rows, max R]."""
        return _grid(self.response_lens)

    def positions(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """(row, t) of the positions that predict the `chosen` response tokens, bool [num_rows, max R]; both
        [num_chosen]."""
        row, token = chosen.nonzero(as_tuple=True)
        return row, self.prompt_lens[row] - 1 + token


def _grid(row_lens: Tensor) -> Tensor:
    """True up to the length of each row, bool [num_rows, longest]."""
    return torch.arange(int(row_lens.max()), device=row_lens.device) < row_lens[:, None]


def _filled(name: str, column: Tensor, row_lens: Tensor) -> Tensor:
    """A jagged or dense column as [num_rows, longest], zeros on the right. WorkerError if its rows have other lengths.

    One masked assignment: `padded` goes row by row, which is 7% of an update of 128 short rows.
    """
    own_lens = lengths(column).to(row_lens.device)
    if len(own_lens) != len(row_lens) or (own_lens != row_lens).any():
        row = int((own_lens != row_lens).nonzero()[0]) if len(own_lens) == len(row_lens) else len(own_lens)
        raise WorkerError(
            f"{name}, row {row}: {own_lens[row : row + 1].tolist()} tokens, but prompts and responses make it "
            f"{row_lens[row : row + 1].tolist()}"
        )
    if not column.is_nested:
        return column
    grid = _grid(row_lens)
    out = torch.zeros(grid.shape, dtype=column.dtype, device=column.device)
    out[grid] = column.values()
    return out


def _continued(position_ids: Tensor, seq_lens: Tensor) -> Tensor:
    """Count on through the padding: a step back to 0 reads as a new packed sequence to transformers, which then
    builds a mask."""
    grid = torch.arange(position_ids.shape[1], device=position_ids.device)  # [max S]
    last = position_ids.gather(1, seq_lens[:, None] - 1)  # [num_rows, 1]
    return torch.where(grid < seq_lens[:, None], position_ids, last + 1 + grid - seq_lens[:, None])


def micro_batch_indices(
    seq_lens: Tensor, micro_batch_size: int | None = None, max_token_len: int | None = None
) -> list[Tensor]:
    """Cut rows into micro-batches, longest rows first; a list of int64 row indices.

    Either `micro_batch_size` rows each (the last may have fewer), or as many rows as fit into `max_token_len` tokens,
    padding counted. Raises WorkerError if a single row is longer than `max_token_len`.
    """
    order = seq_lens.sort(descending=True, stable=True).indices
    if max_token_len is None:
        return list(order.split(micro_batch_size or len(order)))
    longest = int(seq_lens.max())
    if longest > max_token_len:
        raise WorkerError(
            f"a row of {longest} tokens does not fit into a micro-batch of {max_token_len}: raise "
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu (or rollout.log_prob_max_token_len_per_gpu)"
        )
    pieces, start = [], 0
    while start < len(order):
        # The first row of a piece is its longest: it sets the padded width.
        num_rows = max_token_len // int(seq_lens[order[start]])
        pieces.append(order[start : start + num_rows])
        start += num_rows
    return pieces


def split_to(pieces: list[Tensor], num_pieces: int) -> list[Tensor]:
    """Halve the largest pieces until there are `num_pieces`: every rank must run the same number of collectives."""
    pieces = list(pieces)
    while len(pieces) < num_pieces:
        at = max(range(len(pieces)), key=lambda i: len(pieces[i]))
        if len(pieces[at]) < 2:
            raise WorkerError(
                f"{sum(map(len, pieces))} rows cannot make {num_pieces} micro-batches: ranks hold unequal rows"
            )
        half = len(pieces[at]) // 2
        pieces[at : at + 1] = [pieces[at][:half], pieces[at][half:]]
    return pieces
