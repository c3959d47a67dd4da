"""What actor and critic share: mini-batches, micro-batches, optimizer steps, and a state to save.

verl 0.9.1: workers/engine_workers.py, TrainingWorker (train_mini_batch). Left out: profiler, MFU.

    train:  epochs x mini-batches x micro-batches

    batch of this rank     row row row row | row row row row     rows as balanced by the trainer
      mini-batch           row row row row                       mini_batch_size / dp_size rows: one optimizer step
        micro-batches      row row . row row                     forward and backward, gradients add up
                                                                 after the last one: one step of the lr schedule

Differs: the order of a shuffled epoch comes from torch.randperm with seed + rank, not from a dataloader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.workers.bridge import setting
from kitlib.workers.engine import FSDPEngine
from kitlib.workers.errors import WorkerError
from kitlib.workers.losses import LossOutput
from kitlib.workers.rows import Rows
from kitlib.workers.worker import Worker

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MicroLoss = Callable[[Rows, Tensor, dict[str, Any]], LossOutput]
"""The loss of a micro-batch: its rows, which response tokens count (bool [num_rows, max R]), global_batch_info."""


class TrainingWorker(Worker):
    """A worker whose model learns. A subclass sets the two names and `settings`, and calls `train`."""

    section: str  # where its settings live: actor_rollout_ref.actor, critic
    prefix: str  # of its metrics: actor, critic
    settings: Any

    def train(self, rows: Rows, data: TensorDict, micro_loss: MicroLoss) -> dict[str, float]:
        """Optimizer steps on the rows of this rank; returns the means of the metrics over mini-batches.

        Reads the settings mini_batch_size and global_batch_size (rows of a mini-batch over all ranks), epochs, seed,
        dataloader_kwargs of `data`, and if there rows_to_train (numbers of the rows to take instead of all). Adds
        <prefix>/grad_norm and <prefix>/lr.
        """
        if drawn := setting(data, "rows_to_train", None):
            if self.dp_size > 1:
                raise WorkerError(
                    f"algorithm.use_pf_ppo=true draws rows of the whole batch, and each of {self.dp_size} ranks holds "
                    "a slice of it: a drawn row would meet the columns of another. Run it on one rank, or without"
                )
            rows = rows.take(torch.tensor(drawn, device=self.engine.device))
        per_step = []
        for mini_batch in self._mini_batches(rows, data):
            per_step.append(self._step(mini_batch, setting(data, "global_batch_size"), micro_loss))
        metrics = {name: sum(step[name] for step in per_step) / len(per_step) for name in per_step[0]}
        metrics[f"{self.prefix}/lr"] = self.engine.lr_scheduler_step()
        return metrics

    # State

    def save_pretrained(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Write model and tokenizer in Hugging Face format: the folder can be a `model.path` again."""
        self.engine.save_pretrained(folder)
        if tokenizer is not None and self.engine.rank == 0:
            tokenizer.save_pretrained(folder)

    def save_checkpoint(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Write what checkpoint.save_contents names, to go on from here: see engine/state.py."""
        contents = self.settings.checkpoint.save_contents
        self.engine.save_checkpoint(Path(folder), contents)
        if "hf_model" in contents:
            self.save_pretrained(Path(folder) / "huggingface", tokenizer)

    def load_checkpoint(self, folder: str | Path) -> None:
        """Put back what checkpoint.load_contents names. Raises CheckpointError."""
        self.engine.load_checkpoint(Path(folder), self.settings.checkpoint.load_contents)

    # Cutting

    def _mini_batches(self, rows: Rows, data: TensorDict) -> Iterator[Rows]:
        mini_batch_size = setting(data, "mini_batch_size")
        per_rank, rest = divmod(mini_batch_size, self.dp_size)
        if rest or per_rank == 0 or len(rows) % per_rank:
            raise WorkerError(
                f"{len(rows)} rows on each of {self.dp_size} rank(s) do not make whole mini-batches of "
                f"{mini_batch_size} ({self.section}.ppo_mini_batch_size * rollout.n): call balance_batch "
                "before, it adds padding rows"
            )
        generator = torch.Generator().manual_seed(setting(data, "seed", 42) + self.engine.rank)
        shuffle = setting(data, "dataloader_kwargs", {}).get("shuffle", False)
        for _ in range(setting(data, "epochs", 1)):
            order = torch.randperm(len(rows), generator=generator) if shuffle else torch.arange(len(rows))
            for index in order.to(self.engine.device).split(per_rank):
                yield rows.take(index)

    def train_micro_batches(self, rows: Rows) -> list[Tensor]:
        """Row numbers of each forward and backward, by rows or by tokens as the settings say."""
        by_tokens = self.settings.ppo_max_token_len_per_gpu if self.settings.use_dynamic_bsz else None
        return self.micro_batches(rows, self.settings.ppo_micro_batch_size_per_gpu, by_tokens)

    # One optimizer step

    def _step(self, rows: Rows, global_batch_size: int, micro_loss: MicroLoss) -> dict[str, float]:
        num_tokens = self.engine.all_reduce(rows.response["loss_mask"].sum())
        global_batch_info = {
            "dp_size": self.dp_size,
            "batch_num_tokens": num_tokens.item(),
            "global_batch_size": global_batch_size,
            "loss_scale_factor": self.settings.loss_scale_factor,
        }
        micro_batches = self.train_micro_batches(rows)
        total = MetricSums()
        for number, index in enumerate(micro_batches, start=1):
            micro = rows.take(index)
            chosen = micro.response["response_mask"].bool()
            output = micro_loss(micro, chosen, global_batch_info)
            self.engine.backward(output.loss, is_last_micro_batch=number == len(micro_batches))
            total.add(output, num_tokens=int(chosen.sum()))
        grad_norm = self.engine.optimizer_step()
        return {**total.over_ranks(self.engine), f"{self.prefix}/grad_norm": grad_norm}


class MetricSums:
    """Adds up the metrics of micro-batches as their kind asks for (see LossOutput)."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}
        self._weighted: dict[str, float] = {}
        self._num_tokens = 0

    def add(self, output: LossOutput, num_tokens: int) -> None:
        """Take in one micro-batch with `num_tokens` unmasked tokens."""
        for name, value in output.shares.items():
            self._shares[name] = self._shares.get(name, 0.0) + value
        for name, value in output.means.items():
            self._weighted[name] = self._weighted.get(name, 0.0) + value * num_tokens
        self._num_tokens += num_tokens

    def over_ranks(self, engine: FSDPEngine) -> dict[str, float]:
        """The metrics of the mini-batch over all ranks."""
        local = [*self._shares.values(), *self._weighted.values(), self._num_tokens]
        summed = engine.all_reduce(torch.tensor(local, dtype=torch.float64, device=engine.device)).tolist()
        num_tokens = max(summed[-1], 1)
        shares = {name: value / engine.dp_size for name, value in zip(self._shares, summed, strict=False)}
        means = zip(self._weighted, summed[len(self._shares) : -1], strict=True)
        return shares | {name: value / num_tokens for name, value in means}


def to_response(flat: Tensor, chosen: Tensor) -> Tensor:
    """Values [num_chosen] at their places in [num_rows, max R], zero elsewhere."""
    return torch.zeros(chosen.shape, device=flat.device).index_put(chosen.nonzero(as_tuple=True), flat)
