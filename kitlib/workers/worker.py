"""What all workers share: an engine, micro-batches, and one number for every response token of a batch.

verl 0.9.1: workers/engine_workers.py, TrainingWorker (infer_batch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor

from kitlib.transfer_queue import jagged
from kitlib.workers.engine import FSDPEngine
from kitlib.workers.rows import Rows, micro_batch_indices, split_to

TokenColumns = dict[str, Tensor]
"""{name: float32 [num_chosen]}, in the order of `Rows.positions`."""


class Worker:
    """One data-parallel rank with one model."""

    engine: FSDPEngine

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks."""
        return self.engine.dp_size

    def close(self) -> None:
        """Release the process group."""
        self.engine.close()

    def micro_batches(self, rows: Rows, micro_batch_size: int | None, max_token_len: int | None) -> list[Tensor]:
        """Row numbers of each forward pass: so many rows, or so many tokens; as many passes on every rank."""
        pieces = micro_batch_indices(rows.seq_lens, micro_batch_size, max_token_len)
        most = self.engine.all_reduce(torch.tensor(len(pieces), device=self.engine.device), dist.ReduceOp.MAX)
        return split_to(pieces, int(most))

    def score(
        self,
        rows: Rows,
        pieces: Sequence[Tensor],
        temperature: float,
        with_entropy: bool,
        with_sum_pi_squared: bool = False,
    ) -> TensorDict:
        """`log_probs` and, if asked for, `entropy` and `sum_pi_squared` of every response token: see `score_tokens`."""

        def score(micro: Rows, chosen: Tensor) -> TokenColumns:
            return self.engine.infer(micro, chosen, temperature, with_entropy, with_sum_pi_squared).columns()

        return self.score_tokens(rows, pieces, score)

    def score_tokens(
        self, rows: Rows, pieces: Sequence[Tensor], score: Callable[[Rows, Tensor], TokenColumns]
    ) -> TensorDict:
        """The columns that `score` gives for each micro-batch, in one piece: jagged float32 [S].

        The value at t belongs to token t + 1. Differs: verl fills all S positions; here the positions that predict
        prompt tokens (and the last, which predicts nothing) are 0: no stage reads them, and they would cost the output
        head once more.
        """
        columns: dict[str, Tensor] = {}  # [num_rows, max S]
        for index in pieces:
            micro = rows.take(index)
            chosen = micro.response_grid()
            row, position = micro.positions(chosen)
            for name, values in score(micro, chosen).items():
                if name not in columns:
                    columns[name] = torch.zeros(rows.sequence["input_ids"].shape, device=self.engine.device)
                columns[name][index[row], position] = values
        return TensorDict({name: _to_jagged(column, rows) for name, column in columns.items()}, batch_size=[len(rows)])


def _to_jagged(column: Tensor, rows: Rows) -> Tensor:
    """A column [num_rows, max S] as jagged [num_rows, S] on the CPU, where the queue keeps it."""
    return jagged([row[:num] for row, num in zip(column.cpu(), rows.seq_lens.tolist(), strict=True)])
