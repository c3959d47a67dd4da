"""A language model, or a critic, sharded with FSDP2, its optimizer and its schedule.

verl 0.9.1: workers/engine/fsdp/transformer_impl.py, FSDPEngine (strategy fsdp2). Left out: FSDP1, sequence and tensor
parallelism, hybrid sharding, offload to the CPU, quantisation-aware training, sharded checkpoints.

    model (fp32 weights)
      -> to(device)
      -> gradient checkpointing, if asked for: each decoder layer keeps its input only and runs again in backward
      -> fully_shard(each decoder layer): its weights are gathered when it runs and freed after it
      -> fully_shard(root): what is left, that is embedding, final norm, output head
      -> AdamW over the shards, fp32

On a GPU the gathered weights and all activations are bfloat16 and gradients are reduced in float32; on a CPU
everything is float32. With one rank a shard is the whole tensor and the wrapping costs 3 ms a forward and backward of
a 2-layer model on one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from kitlib.models import no_progress_bars
from kitlib.workers.engine.optim import build_lr_scheduler, build_optimizer
from kitlib.workers.engine.scoring import TokenScorer
from kitlib.workers.engine.shards import ShardRow, shard_rows
from kitlib.workers.engine.state import load_engine, save_engine, without_ties
from kitlib.workers.errors import WorkerError
from kitlib.workers.lora import merged_weights
from kitlib.workers.process_group import ProcessGroupLease
from kitlib.workers.rows import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FSDPEngine:
    """One model with FSDP2 around it.

    Args:
        model: a model of transformers with float32 weights; it is sharded in place and belongs to the engine.
        optim: config section with the optimizer and the schedule (`actor.optim`); None for a model never trained.
        device: cpu or cuda[:i].
        param_dtype: of weights and activations in forward and backward; always float32 on a CPU.
        reshard_after_forward: free the gathered weights of a layer between forward and backward.
        gradient_checkpointing: trade a second forward for the memory of activations.
        make_scorer: what the model is asked for, TokenScorer or ValueScorer; called before the model is sharded.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optim: Any | None,
        device: torch.device,
        param_dtype: torch.dtype = torch.bfloat16,
        reshard_after_forward: bool = True,
        gradient_checkpointing: bool = False,
        make_scorer: Callable[[Any], Callable[..., Any]] = TokenScorer,
    ) -> None:
        self.device = device
        self.group = ProcessGroupLease(device)
        self.rank, self.dp_size = dist.get_rank(), dist.get_world_size()
        self.model = model.to(device)  # type: ignore[arg-type]
        if gradient_checkpointing:
            # transformers 5.24 renames it and warns under the old name
            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
            enable({"use_reentrant": False})
        try:
            # Before sharding: fully_shard looks up the root's parameters, and the hook must sit on the module that
            # stays.
            self.score_tokens = make_scorer(model)
            self._shard(param_dtype if device.type == "cuda" else torch.float32, reshard_after_forward)
            trained = [value for value in model.parameters() if value.requires_grad]
            self.optimizer = build_optimizer(trained, optim) if optim is not None else None
            self.lr_scheduler = build_lr_scheduler(self.optimizer, optim) if self.optimizer is not None else None
        except BaseException:
            self.group.close()
            raise
        self._kept_weights: dict[str, dict[str, Tensor]] = {}
        self._max_grad_norm = float("inf") if optim is None else optim.clip_grad

    def _shard(self, param_dtype: torch.dtype, reshard_after_forward: bool) -> None:
        mesh = init_device_mesh(self.device.type, (self.dp_size,))
        policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32)
        # One rank has nothing to free: its shard is the whole tensor.
        reshard = reshard_after_forward and self.dp_size > 1
        for layer in decoder_layers(self.model):
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(self.model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)

    @torch.no_grad()
    def infer(self, rows: Rows, chosen: Tensor, *options: Any, **more: Any) -> Any:
        """Score the `chosen` response tokens, bool [num_rows, max R], without gradients; the options are the
        scorer's."""
        self.model.eval()
        scores = self.score_tokens(rows, chosen, *options, **more)
        self.reshard()
        return scores

    def forward(self, rows: Rows, chosen: Tensor, *options: Any, **more: Any) -> Any:
        """As `infer`, with gradients."""
        self.model.train()
        return self.score_tokens(rows, chosen, *options, **more)

    def backward(self, loss: Tensor, is_last_micro_batch: bool) -> None:
        """Add the gradient of `loss`; ranks exchange gradients once, after the last micro-batch of an optimizer
        step."""
        self.model.set_requires_gradient_sync(is_last_micro_batch)
        loss.backward()

    def optimizer_step(self) -> float:
        """Clip the gradient to optim.clip_grad, update the weights, clear the gradient. Returns the norm before
        clipping.

        Differs: a norm that is not finite raises WorkerError and leaves the weights alone; verl warns and goes on.
        """
        assert self.optimizer is not None, "this engine was built without an optimizer"
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._max_grad_norm)
        grad_norm = float(_full(norm).item())
        if not math.isfinite(grad_norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise WorkerError(
                f"the gradient norm is {grad_norm}: a loss input is NaN or infinite (advantages, old_log_probs, "
                "returns), or the learning rate (actor_rollout_ref.actor.optim.lr, critic.optim.lr) is too high. The "
                "weights were not changed"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return grad_norm

    def lr_scheduler_step(self) -> float:
        """Advance the schedule; returns the learning rate of the next update."""
        assert self.lr_scheduler is not None, "this engine was built without an optimizer"
        self.lr_scheduler.step()
        return float(self.lr_scheduler.get_last_lr()[0])

    def all_reduce(self, value: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """`value` combined over the data-parallel ranks, in place."""
        if self.dp_size > 1:
            dist.all_reduce(value, op=op)
        return value

    def full_state_dict(self) -> dict[str, Tensor]:
        """Full float32 copies of all weights under the names of the Hugging Face model, LoRA merged into them. A
        collective: every rank calls it."""
        self.reshard()
        gathered = {name: _full(value.detach()).clone() for name, value in self.model.state_dict().items()}
        return merged_weights(self.model, gathered)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config and weights in Hugging Face format; rank 0 writes, every rank calls."""
        state_dict = without_ties(self.model, self.full_state_dict())
        if self.rank == 0:
            with no_progress_bars():
                self.model.save_pretrained(folder, state_dict=state_dict)

    def save_checkpoint(self, folder: Path, contents: Collection[str]) -> None:
        """Write weights, optimizer, schedule and random states to a folder, as far as `contents` names them: see
        state.py."""
        save_engine(self, folder, contents)

    def load_checkpoint(self, folder: Path, contents: Collection[str]) -> None:
        """Put back what save_checkpoint has written."""
        load_engine(self, folder, contents)

    def shards(self) -> list[ShardRow]:
        """Placement of every parameter and its bytes on every rank, for kitlib.inspector.shard_map."""
        self.reshard()
        return shard_rows(self.model)

    def save_weights(self, name: str) -> None:
        """Keep a copy of this rank's shards on the CPU under `name`; an older copy of that name is replaced."""
        self.reshard()
        copies = {key: _local(value).to("cpu", copy=True) for key, value in self.model.state_dict().items()}
        self._kept_weights[name] = copies

    @torch.no_grad()
    def restore_weights(self, name: str) -> None:
        """Put the shards kept under `name` back into the model; the optimizer state stays as it is."""
        if name not in self._kept_weights:
            raise WorkerError(f"no weights were kept under {name!r}: call save_weights first")
        self.reshard()
        for key, value in self.model.state_dict().items():
            _local(value).copy_(self._kept_weights[name][key])

    def close(self) -> None:
        """Give the process group back. The engine cannot be used afterwards."""
        self.group.close()

    def reshard(self) -> None:
        """Put the shards back in place of gathered weights that a forward without a backward has left."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers that a model asks not to split across devices; none if it names none (then the root is one unit)."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _local(value: Tensor) -> Tensor:
    """This rank's shard of a tensor, sharing its memory."""
    return value.to_local() if isinstance(value, DTensor) else value


def _full(value: Tensor) -> Tensor:
    """A sharded tensor in one piece. With one rank the shard is that piece: no collective is needed."""
    if not isinstance(value, DTensor):
        return value
    return value.to_local() if value.device_mesh.size() == 1 else value.full_tensor()
