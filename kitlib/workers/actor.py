"""The actor: scores tokens with the policy and updates it, on one data-parallel rank.

verl 0.9.1: workers/engine_workers.py, ActorRolloutRefWorker (compute_log_prob, update_actor) and TrainingWorker
(infer_batch). Left out: rollout inside the worker, profiler, distillation, MFU. How a batch is cut is in training.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.workers.bridge import fetches, setting
from kitlib.workers.engine import FSDPEngine
from kitlib.workers.fused import use_fused_kernels
from kitlib.workers.lora import add_lora, uses_lora, without_adapter
from kitlib.workers.losses import LossOutput, ppo_loss
from kitlib.workers.rows import SEQUENCE_COLUMNS, Rows
from kitlib.workers.training import TrainingWorker, to_response
from kitlib.workers.update_record import UpdateRecord

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RESPONSE_COLUMNS = ("response_mask", "loss_mask", "old_log_probs", "advantages")
OPTIONAL_COLUMNS = ("ref_log_prob", "rollout_is_weights")


class ActorRolloutRefWorker(TrainingWorker):
    """Policy, optimizer and the two calls that the trainer makes.

    Args:
        config: the whole config; read are actor_rollout_ref.actor, .rollout.log_prob_* and .model.
        model: a causal language model with float32 weights; belongs to the worker from here on.
        device: cpu or cuda[:i].
    """

    section, prefix = "actor_rollout_ref.actor", "actor"

    def __init__(self, config: Any, model: PreTrainedModel, device: torch.device | str = "cpu") -> None:
        self.settings = actor = config.actor_rollout_ref.actor
        self.rollout = config.actor_rollout_ref.rollout
        if config.actor_rollout_ref.model.use_fused_kernels:
            use_fused_kernels(model, torch.device(device))
        if uses_lora(config.actor_rollout_ref.model):
            add_lora(model, config.actor_rollout_ref.model)
        self.engine = FSDPEngine(
            model,
            optim=actor.optim,
            device=torch.device(device),
            param_dtype=getattr(torch, actor.fsdp_config.dtype),
            reshard_after_forward=actor.fsdp_config.reshard_after_forward,
            gradient_checkpointing=config.actor_rollout_ref.model.enable_gradient_checkpointing,
        )

    @fetches(*SEQUENCE_COLUMNS)
    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        """Score every response token with the current policy.

        Reads input_ids, position_ids [S], prompts [P], responses [R]; settings temperature, calculate_entropy and
        calculate_sum_pi_squared. Writes `log_probs` and, as asked for, `entropy` and `sum_pi_squared`: see
        Worker.score.
        """
        rows = Rows.from_tensordict(data, (), self.engine.device)
        return self.score(
            rows,
            self._infer_micro_batches(rows),
            setting(data, "temperature", 1.0),
            setting(data, "calculate_entropy", False),
            setting(data, "calculate_sum_pi_squared", False),
        )

    @fetches(*SEQUENCE_COLUMNS)
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        """Score with the model as it was before it had a LoRA adapter: the reference, without a second model.

        Reads and writes as compute_log_prob, `log_probs` alone; cut into micro-batches as actor_rollout_ref.rollout
        says.
        """
        rows = Rows.from_tensordict(data, (), self.engine.device)
        with without_adapter(self.engine.model):
            return self.score(rows, self._infer_micro_batches(rows), setting(data, "temperature", 1.0), False)

    @fetches(*SEQUENCE_COLUMNS, *RESPONSE_COLUMNS, optional=OPTIONAL_COLUMNS)
    def update_actor(self, data: TensorDict) -> dict[str, float] | TensorDict:
        """Update the policy on the rows of this rank; returns metrics, writes nothing.

        With the setting record_update it writes the columns of UpdateRecord, and the metrics are beside them as
        `metrics`.

        Reads input_ids, position_ids [S], prompts [P] and, all [R]: responses, response_mask, loss_mask,
        old_log_probs, advantages, and if there ref_log_prob and rollout_is_weights. Settings, all set by the trainer:
        those of TrainingWorker.train, temperature, calculate_entropy, record_update.

        Metrics are means over mini-batches: actor/pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower, loss, grad_norm,
        lr, and entropy_loss, kl_loss, kl_coef if configured.
        """
        columns = [*RESPONSE_COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in data.keys())]
        rows = Rows.from_tensordict(data, columns, self.engine.device)
        temperature = setting(data, "temperature", 1.0)
        with_entropy = setting(data, "calculate_entropy", self.settings.entropy_coeff != 0)
        record = UpdateRecord(rows) if setting(data, "record_update", False) else None

        def micro_loss(micro: Rows, chosen: Tensor, global_batch_info: dict[str, Any]) -> LossOutput:
            scores = self.engine.forward(micro, chosen, temperature, with_entropy)
            log_prob = to_response(scores.log_probs, chosen)
            entropy = None if scores.entropy is None else to_response(scores.entropy, chosen)
            output = ppo_loss(self.settings, log_prob, entropy, micro.response, global_batch_info)
            if record is not None:
                record.add(micro, log_prob, output.policy_loss)
            return output

        metrics = self.train(rows, data, micro_loss)
        if self.settings.use_kl_loss:
            metrics["actor/kl_coef"] = self.settings.kl_loss_coef
        if record is None:
            return metrics
        output = TensorDict(record.columns(self.engine), batch_size=[len(rows)])
        output.set_non_tensor("metrics", metrics)
        return output

    def state_dict_for_rollout(self) -> dict[str, Tensor]:
        """Full float32 copies of the weights under their Hugging Face names, for the LLM servers; LoRA is merged."""
        return self.engine.full_state_dict()

    def save_weights(self, name: str) -> None:
        """Keep a copy of the weights on the CPU, for restore_weights (verl: DetachActorWorker.save_model_to_cpu)."""
        self.engine.save_weights(name)

    def restore_weights(self, name: str) -> None:
        """Put kept weights back; the optimizer state stays."""
        self.engine.restore_weights(name)

    def _infer_micro_batches(self, rows: Rows) -> list[Tensor]:
        rollout = self.rollout
        return self.micro_batches(
            rows,
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_max_token_len_per_gpu if rollout.log_prob_use_dynamic_bsz else None,
        )
