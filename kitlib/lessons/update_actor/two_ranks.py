"""A small layer cut over two processes by FSDP2, with gloo on the CPU: what each rank holds, and what gradient it gets.

    parent   run_two_ranks()             starts this file twice and reads what they found
    rank 0   one answer of 1 token       rank 1   one answer of 3 tokens

The ranks run this file by its path, so that they load torch and the loss, and not a language model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kitlib.algos.aggregation import agg_loss

WORLD_SIZE, TIMEOUT = 2, 240
MASK = torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()  # [2 answers, 3 tokens]
NUM_TOKENS = int(MASK.sum())


@dataclass(frozen=True)
class TwoRanks:
    """What the two processes found, and what one process finds on all rows."""

    shape: tuple[int, ...]  # of the whole weight
    held: list[tuple[int, ...]]  # shape of the piece of each rank
    inside: list[tuple[int, ...]]  # shape of the weight while the layer runs
    placement: str
    gradient: Tensor  # each rank divides by the tokens of both
    gradient_own_counts: Tensor  # each rank divides by its own tokens
    one_process: Tensor

    def shards(self) -> list[tuple[str, tuple[int, ...], str, tuple[int, ...]]]:
        """For kitlib.inspector.shard_map."""
        num_bytes = tuple(4 * torch.Size(shape).numel() for shape in self.held)
        return [("layer.weight", self.shape, self.placement, num_bytes)]


def run_two_ranks() -> TwoRanks:
    """Start two processes, wait for them, and compare with this one. LessonError if one of them fails."""
    from kitlib.lessons.expect import LessonError  # not in the ranks: it would load much more than they need

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, folder]
        pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        ranks = [subprocess.Popen([*command, str(rank)], **pipes) for rank in range(WORLD_SIZE)]
        try:
            said = [rank.communicate(timeout=TIMEOUT)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        files = [_result_file(folder, rank) for rank in range(WORLD_SIZE)]
        for file, rank, words in zip(files, ranks, said, strict=True):
            if not file.exists():  # what counts is the result: threads of gloo may abort a process on its way out
                raise LessonError(f"a rank ended with {rank.returncode}:\n{words}")
        found = [json.loads(file.read_text()) for file in files]
    first, layer = found[0], _layer()
    _loss(layer, _tokens(), MASK, 1, NUM_TOKENS).backward()
    assert layer.weight.grad is not None
    return TwoRanks(
        shape=tuple(layer.weight.shape),
        held=[tuple(rank["held"]) for rank in found],
        inside=[tuple(rank["inside"]) for rank in found],
        placement=first["placement"],
        gradient=torch.tensor(first["gradient"]),
        gradient_own_counts=torch.tensor(first["gradient_own_counts"]),
        one_process=layer.weight.grad,
    )


def _layer() -> nn.Linear:
    layer = nn.Linear(4, 5, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-1, 1, 20).reshape(5, 4))
    return layer


def _tokens() -> Tensor:
    """What goes into the layer, [2 answers, 3 tokens, 4]."""
    return torch.linspace(-2, 3, 24).sin().reshape(2, 3, 4)


def _loss(layer: nn.Module, tokens: Tensor, mask: Tensor, dp_size: int, num_tokens: int | None) -> Tensor:
    losses = layer(tokens).square().sum(dim=-1)  # [num_answers, 3]
    if num_tokens is None:  # the count of this rank alone; FSDP then takes the mean over ranks
        return agg_loss(losses, mask, "token-mean")
    return agg_loss(losses, mask, "token-mean", dp_size=dp_size, batch_num_tokens=num_tokens)


def rank_main(folder: str, rank: int) -> None:
    """One rank: cut the layer, run its own answer, write down what it saw."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    layer: Any = _layer()
    fully_shard(layer, mesh=init_device_mesh("cpu", (WORLD_SIZE,)))
    inside: list[list[int]] = []
    layer.register_forward_hook(lambda module, *_: inside.append(list(module.weight.shape)))
    own = slice(rank, rank + 1)
    gradients = []
    for num_tokens in (NUM_TOKENS, None):
        layer.zero_grad()
        _loss(layer, _tokens()[own], MASK[own], WORLD_SIZE, num_tokens).backward()
        gradients.append(layer.weight.grad.full_tensor().tolist())
    found = {
        "held": list(layer.weight.to_local().shape),
        "inside": inside[0],
        "placement": f"Shard({layer.weight.placements[0].dim})",
        "gradient": gradients[0],
        "gradient_own_counts": gradients[1],
    }
    dist.barrier()  # both have all they need
    draft = Path(folder) / f"draft{rank}"
    draft.write_text(json.dumps(found))
    draft.rename(_result_file(folder, rank))
    dist.destroy_process_group()


def _result_file(folder: str, rank: int) -> Path:
    return Path(folder) / f"rank{rank}.json"


if __name__ == "__main__":
    rank_main(sys.argv[1], int(sys.argv[2]))
