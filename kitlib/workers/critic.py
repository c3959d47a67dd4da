"""The critic: the value of every state on the way, and its update, on one data-parallel rank.

verl 0.9.1: workers/engine_workers.py, TrainingWorker with a model of type value_model (infer_batch,
train_mini_batch), and workers/utils/losses.py, value_loss.

The model is the trunk of a language model with a head of width 1. V_t is read at the position that predicts token
t + 1, that is before that token is chosen, so the critic knows what the policy knew:

    input_ids      p  p  p  r  r  r
    values         .  . V0 V1 V2  .       V0 is the value of the prompt, V1 after the first response token, ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.algos import compute_value_loss
from kitlib.algos.masked import masked_mean
from kitlib.workers.bridge import fetches
from kitlib.workers.engine import FSDPEngine
from kitlib.workers.engine.scoring import ValueScorer
from kitlib.workers.losses import LossOutput
from kitlib.workers.rows import SEQUENCE_COLUMNS, Rows
from kitlib.workers.training import TrainingWorker, to_response

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CRITIC_COLUMNS = ("response_mask", "loss_mask", "values", "returns")


class CriticWorker(TrainingWorker):
    """Value model, optimizer and the two calls that the trainer makes.

    Args:
        config: the whole config; read are critic and actor_rollout_ref.actor.fsdp_config.
        model: a token classifier with one label (kitlib.models.load_value_model); belongs to the worker.
        device: cpu or cuda[:i].
    """

    section, prefix = "critic", "critic"

    def __init__(self, config: Any, model: PreTrainedModel, device: torch.device | str = "cpu") -> None:
        self.settings = config.critic
        fsdp = config.actor_rollout_ref.actor.fsdp_config
        self.engine = FSDPEngine(
            model,
            optim=config.critic.optim,
            device=torch.device(device),
            param_dtype=getattr(torch, fsdp.dtype),
            reshard_after_forward=fsdp.reshard_after_forward,
            gradient_checkpointing=config.critic.model.enable_gradient_checkpointing,
            make_scorer=ValueScorer,
        )

    @fetches(*SEQUENCE_COLUMNS)
    def compute_values(self, data: TensorDict) -> TensorDict:
        """Write `values` [S]: at t the value of the state before token t + 1; see Worker.score_tokens.

        Reads input_ids, position_ids [S], prompts [P], responses [R].
        """
        rows = Rows.from_tensordict(data, (), self.engine.device)
        pieces = self.train_micro_batches(rows)
        return self.score_tokens(rows, pieces, lambda micro, chosen: {"values": self.engine.infer(micro, chosen)})

    @fetches(*SEQUENCE_COLUMNS, *CRITIC_COLUMNS)
    def update_critic(self, data: TensorDict) -> dict[str, float]:
        """Fit the values to the returns on the rows of this rank; returns metrics, writes nothing.

        Reads input_ids, position_ids [S], prompts [P] and, all [R]: responses, response_mask, loss_mask, values (from
        before the update), returns; the settings of TrainingWorker.train.

        Metrics are means over mini-batches: critic/vf_loss, vf_clipfrac, vpred_mean, grad_norm, lr.
        """
        rows = Rows.from_tensordict(data, CRITIC_COLUMNS, self.engine.device)

        def micro_loss(micro: Rows, chosen: Tensor, global_batch_info: dict[str, Any]) -> LossOutput:
            vpreds = to_response(self.engine.forward(micro, chosen), chosen)  # [num_rows, max R]
            return self._loss(vpreds, chosen, micro.response, global_batch_info)

        return self.train(rows, data, micro_loss)

    def _loss(
        self, vpreds: Tensor, mask: Tensor, response: dict[str, Tensor], global_batch_info: dict[str, Any]
    ) -> LossOutput:
        loss, clipfrac = compute_value_loss(
            vpreds=vpreds,
            returns=response["returns"],
            values=response["values"],
            response_mask=mask,
            cliprange_value=self.settings.cliprange_value,
            loss_agg_mode=self.settings.loss_agg_mode,
            **global_batch_info,
        )
        means = {"critic/vf_clipfrac": clipfrac.item(), "critic/vpred_mean": masked_mean(vpreds, mask).item()}
        return LossOutput(loss, shares={"critic/vf_loss": loss.item()}, means=means)
