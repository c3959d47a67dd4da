"""Fused kernels for norms, rotary embeddings and gated MLPs, from the library liger-kernel; on a GPU only.

verl 0.9.1: models/transformers/monkey_patch.py and workers/engine/fsdp/transformer_impl.py (use_liger,
use_fused_kernels). Differs: one switch, actor_rollout_ref.model.use_fused_kernels. The output head is not liger's: it
gives a loss and no log-prob a token: chunked_head.py keeps the logits small on every device.

liger-kernel puts its rotary embedding into the module of the model class: every model of that class in the process,
the LLM server's too, uses it from then on.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from kitlib.workers.errors import WorkerError


def why_no_fused_kernels(device: torch.device) -> str:
    """Why they cannot be used here, "" if they can."""
    if device.type != "cuda":
        return f"fused kernels run on a GPU, and the device is {device}: set it to false"
    if importlib.util.find_spec("liger_kernel") is None:
        return "they need the package liger-kernel: pip install liger-kernel"
    return ""


def use_fused_kernels(model: Any, device: torch.device) -> None:
    """Put the kernels into a model, in place, before it is sharded. Raises WorkerError where there are none."""
    if reason := why_no_fused_kernels(device):
        raise WorkerError(f"actor_rollout_ref.model.use_fused_kernels=true: {reason}")
    from liger_kernel.transformers import _apply_liger_kernel_to_instance
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise WorkerError(
            f"actor_rollout_ref.model.use_fused_kernels=true: liger-kernel has none for {model.config.model_type}; "
            "set it to false"
        )
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
