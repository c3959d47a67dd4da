"""An engine in a folder: weights, optimizer, schedule and random states.

verl 0.9.1: utils/checkpoint/fsdp_checkpoint_manager.py, FSDPCheckpointManager. What is saved is named by
`actor.checkpoint.save_contents`, what is loaded by `load_contents`:

    model       model.safetensors     full float32 weights under their Hugging Face names
    optimizer   optimizer.pt          full moments and step counts by parameter name
    extra       extra_rank_<r>.pt     schedule, and the random states of each rank
    hf_model    huggingface/          model and tokenizer as from_pretrained takes them; never loaded
    with LoRA   lora_adapter/         the adapter as peft takes it, beside model; never loaded

Differs from verl: rank 0 writes full tensors instead of each rank its shard, so a run may go on with another number of
ranks; nothing is pickled (state_files.py). As in verl, the learning rate and the schedule of the checkpoint go on: a
changed `optim.lr` counts for a new run only, or with load_contents=[model]. Left out: remote storage, asynchronous
saving.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from kitlib.workers.errors import CheckpointError
from kitlib.workers.lora import FOLDER, lora_layers, save_adapter
from kitlib.workers.state_files import read_state, read_weights, write_state, write_weights

if TYPE_CHECKING:
    from kitlib.workers.engine.fsdp import FSDPEngine

MODEL, OPTIMIZER, EXTRA = "model.safetensors", "optimizer.pt", "extra_rank_{}.pt"
_GATHERED = StateDictOptions(full_state_dict=True, cpu_offload=True)
_FULL = StateDictOptions(full_state_dict=True)


def save_engine(engine: FSDPEngine, folder: Path, contents: Collection[str]) -> None:
    """Write the named contents to a folder, which is made if needed. A collective: every rank calls it."""
    folder.mkdir(parents=True, exist_ok=True)
    engine.reshard()
    if "model" in contents:
        weights = get_model_state_dict(engine.model, options=_GATHERED)  # empty on other ranks than 0
        if engine.rank == 0:
            write_weights(folder / MODEL, without_ties(engine.model, weights))
            if lora_layers(engine.model):
                save_adapter(engine.model, weights, folder / FOLDER)
    if "optimizer" in contents and engine.optimizer is not None:
        optimizer = get_optimizer_state_dict(engine.model, engine.optimizer, options=_GATHERED)
        if engine.rank == 0:
            write_state(folder / OPTIMIZER, optimizer)
    if "extra" in contents:
        schedule = None if engine.lr_scheduler is None else engine.lr_scheduler.state_dict()
        extra = {"lr_scheduler": schedule, "rng": rng_state(engine.device)}
        write_state(folder / EXTRA.format(engine.rank), extra)
    if engine.dp_size > 1:
        dist.barrier()


def load_engine(engine: FSDPEngine, folder: Path, contents: Collection[str]) -> None:
    """Put the named contents back. A collective. Raises CheckpointError for files that are missing, damaged or of
    another model; the engine may be half loaded then."""
    engine.reshard()
    if "model" in contents:
        weights = read_weights(folder / MODEL)
        _require_same_model(engine.model, weights, folder / MODEL)
        set_model_state_dict(engine.model, with_ties(engine.model, weights), options=_FULL)
    if "optimizer" in contents and engine.optimizer is not None:
        _load_optimizer(engine, folder / OPTIMIZER)
    if "extra" in contents:
        path = folder / EXTRA.format(engine.rank)
        extra = read_state(path if path.exists() else folder / EXTRA.format(0))  # a rank that was not there before
        if engine.lr_scheduler is not None:
            engine.lr_scheduler.load_state_dict(extra["lr_scheduler"])
        set_rng_state(extra["rng"], engine.device)
    if engine.dp_size > 1:
        dist.barrier()


def _load_optimizer(engine: FSDPEngine, path: Path) -> None:
    state = read_state(path)
    known = {name for name, value in engine.model.named_parameters() if value.requires_grad}
    if set(state.get("state", ())) != known:
        raise CheckpointError(f"{path} is the optimizer of another model: {_difference(state.get('state', {}), known)}")
    set_optimizer_state_dict(engine.model, engine.optimizer, state, options=_FULL)  # type: ignore[arg-type]


def tied_names(model: nn.Module) -> dict[str, str]:
    """{second name: first name} of weights that have two (the output head that is the embedding)."""
    seen: dict[int, str] = {}
    pairs = [(name, seen.setdefault(id(p), name)) for name, p in model.named_parameters(remove_duplicate=False)]
    return {name: first for name, first in pairs if name != first}


def without_ties(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights, each under its first name only."""
    ties = tied_names(model)
    return {name: value for name, value in weights.items() if name not in ties}


def with_ties(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights under all their names."""
    return {**weights, **{name: weights[first] for name, first in tied_names(model).items()}}


def _require_same_model(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    own = {name: tuple(value.shape) for name, value in without_ties(model, model.state_dict()).items()}
    if weights.keys() != own.keys():
        raise CheckpointError(f"{path} holds another model: {_difference(weights, own)}")
    for name, value in weights.items():
        if tuple(value.shape) != own[name]:
            raise CheckpointError(
                f"{path} holds another model: {name} is {tuple(value.shape)} there and {own[name]} here "
                "(actor_rollout_ref.model.path)"
            )


def _difference(theirs: Collection[str], own: Collection[str]) -> str:
    more, fewer = sorted(set(theirs) - set(own)), sorted(set(own) - set(theirs))
    parts = [f"{text} {', '.join(names[:3])}" for text, names in (("unknown", more), ("without", fewer)) if names]
    return f"{' and '.join(parts)} (actor_rollout_ref.model.path)"


def rng_state(device: torch.device) -> dict[str, Any]:
    """The states of the random generators of Python, numpy and torch in this process."""
    _, keys, *rest = np.random.get_state(legacy=True)
    states = {
        "python": random.getstate(),
        "numpy": [torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_rng_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put the states of `rng_state` back."""
    random.setstate(state["python"])
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
