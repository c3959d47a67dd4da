"""What actor and reference share: an engine, micro-batches, and the log-probs of a batch.

verl 0.9.1: workers/engine_workers.py, TrainingWorker (infer_batch).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor

from kitlib.transfer_queue import jagged
from kitlib.workers.engine import FSDPEngine
from kitlib.workers.rows import Rows, micro_batch_indices, split_to


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

    def score(self, rows: Rows, pieces: Sequence[Tensor], temperature: float, with_entropy: bool) -> TensorDict:
        """`log_probs` and, if asked for, `entropy` of every response token: jagged float32 [S].

        The value at t belongs to token t + 1. Differs: verl fills all S positions; here the positions that predict
        prompt tokens (and the last, which predicts nothing) are 0: no stage reads them, and they would cost the output
        head once more.
        """
        names = ("log_probs", "entropy") if with_entropy else ("log_probs",)
        shape = rows.sequence["input_ids"].shape
        columns = {name: torch.zeros(shape, device=self.engine.device) for name in names}  # [num_rows, max S]
        for index in pieces:
            micro = rows.take(index)
            chosen = micro.response_grid()
            scores = self.engine.infer(micro, chosen, temperature, with_entropy)
            row, position = micro.positions(chosen)
            columns["log_probs"][index[row], position] = scores.log_probs
            if scores.entropy is not None:
                columns["entropy"][index[row], position] = scores.entropy
        return TensorDict({name: _to_jagged(column, rows) for name, column in columns.items()}, batch_size=[len(rows)])


def _to_jagged(column: Tensor, rows: Rows) -> Tensor:
    """A column [num_rows, max S] as jagged [num_rows, S] on the CPU, where the queue keeps it."""
    return jagged([row[:num] for row, num in zip(column.cpu(), rows.seq_lens.tolist(), strict=True)])
