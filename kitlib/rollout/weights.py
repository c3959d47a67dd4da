"""Copying the actor's weights into a rollout model, all of them or none.

verl 0.9.1: the loading half of checkpoint_engine/base.py; there each backend loads what it receives, bucket by bucket.
Left out: buckets, and renaming to an engine's own parameter names: both sides use those of the Hugging Face model.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from kitlib.rollout.protocol import RolloutError


def copy_weights(model: nn.Module, state_dict: Mapping[str, Tensor], global_steps: int) -> None:
    """Copy `state_dict` into the parameters of `model` in place; dtype and device are converted.

    A tied weight may come under one of its names only. RolloutError, before anything is copied, if a weight is
    missing, has another shape or is unknown.
    """
    own = model.state_dict()  # tensors that share storage with the parameters
    problem = _misfit(own, state_dict)
    if problem:
        raise RolloutError(
            f"weights of version {global_steps} do not fit the rollout model {type(model).__name__}: {problem}; "
            "actor and rollout server must be loaded from the same actor_rollout_ref.model.path"
        )
    for name, tensor in state_dict.items():
        own[name].copy_(tensor)


def _misfit(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str | None:
    covered = {own[name].data_ptr() for name in given if name in own}
    missing = [name for name, tensor in own.items() if name not in given and tensor.data_ptr() not in covered]
    if missing:
        return f"{len(missing)} are missing, among them {missing[-1]}"
    unknown = [name for name in given if name not in own]
    if unknown:
        return f"{len(unknown)} are unknown to it, among them {unknown[0]}"
    for name, tensor in given.items():
        if tensor.shape != own[name].shape:
            return f"{name} has shape {tuple(tensor.shape)}, expected {tuple(own[name].shape)}"
    return None
