"""The reference policy: a frozen copy of the model the run started from.

verl 0.9.1: workers/engine_workers.py, ActorRolloutRefWorker.compute_ref_log_prob. An actor with a LoRA adapter needs
none of this: it is its own reference without it (ActorRolloutRefWorker.compute_ref_log_prob).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from kitlib.workers.bridge import fetches, setting
from kitlib.workers.engine import FSDPEngine
from kitlib.workers.fused import use_fused_kernels
from kitlib.workers.rows import SEQUENCE_COLUMNS, Rows
from kitlib.workers.worker import Worker

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ReferenceWorker(Worker):
    """Scores tokens and is never trained.

    Args:
        config: the whole config; read are actor_rollout_ref.ref and .actor.fsdp_config.
        model: a causal language model of its own.
        device: cpu or cuda[:i].
    """

    def __init__(self, config: Any, model: PreTrainedModel, device: torch.device | str = "cpu") -> None:
        self.ref = config.actor_rollout_ref.ref
        fsdp = config.actor_rollout_ref.actor.fsdp_config
        model.requires_grad_(False)
        if config.actor_rollout_ref.model.use_fused_kernels:
            use_fused_kernels(model, torch.device(device))
        self.engine = FSDPEngine(
            model,
            optim=None,
            device=torch.device(device),
            param_dtype=getattr(torch, fsdp.dtype),
            reshard_after_forward=fsdp.reshard_after_forward,
        )

    @fetches(*SEQUENCE_COLUMNS)
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        """Score every response token; reads and writes as ActorRolloutRefWorker.compute_log_prob, `log_probs` alone."""
        rows = Rows.from_tensordict(data, (), self.engine.device)
        by_tokens = self.ref.log_prob_max_token_len_per_gpu if self.ref.log_prob_use_dynamic_bsz else None
        pieces = self.micro_batches(rows, self.ref.log_prob_micro_batch_size_per_gpu, by_tokens)
        return self.score(rows, pieces, setting(data, "temperature", 1.0), with_entropy=False)
