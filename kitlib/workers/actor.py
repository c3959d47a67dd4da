"""The actor: scores tokens with the policy and updates it, on one data-parallel rank.

verl 0.9.1: workers/engine_workers.py, ActorRolloutRefWorker (compute_log_prob, update_actor) and TrainingWorker
(infer_batch, train_mini_batch). Left out: rollout inside the worker, reference and critic, profiler, distillation,
MFU.

    update_actor:  epochs x mini-batches x micro-batches

    batch of this rank     row row row row | row row row row     rows as balanced by the trainer
      mini-batch           row row row row                       mini_batch_size / dp_size rows: one optimizer step
        micro-batches      row row . row row                     forward and backward, gradients add up
                                                                 after the last one: one step of the lr schedule

Differs: the order of a shuffled epoch comes from torch.randperm with seed + rank, not from a dataloader.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.workers.bridge import fetches, setting
from kitlib.workers.engine import FSDPEngine
from kitlib.workers.engine.scoring import TokenScores
from kitlib.workers.errors import WorkerError
from kitlib.workers.losses import LossOutput, ppo_loss
from kitlib.workers.rows import SEQUENCE_COLUMNS, Rows
from kitlib.workers.worker import Worker

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RESPONSE_COLUMNS = ("response_mask", "loss_mask", "old_log_probs", "advantages")
OPTIONAL_COLUMNS = ("ref_log_prob", "rollout_is_weights")


class ActorRolloutRefWorker(Worker):
    """Policy, optimizer and the two calls that the trainer makes.

    Args:
        config: the whole config; read are actor_rollout_ref.actor, .rollout.log_prob_* and .model.
        model: a causal language model with float32 weights; belongs to the worker from here on.
        device: cpu or cuda[:i].
    """

    def __init__(self, config: Any, model: PreTrainedModel, device: torch.device | str = "cpu") -> None:
        self.actor = config.actor_rollout_ref.actor
        self.rollout = config.actor_rollout_ref.rollout
        self.engine = FSDPEngine(
            model,
            optim=self.actor.optim,
            device=torch.device(device),
            param_dtype=getattr(torch, self.actor.fsdp_config.dtype),
            reshard_after_forward=self.actor.fsdp_config.reshard_after_forward,
            gradient_checkpointing=config.actor_rollout_ref.model.enable_gradient_checkpointing,
        )

    @fetches(*SEQUENCE_COLUMNS)
    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        """Score every response token with the current policy.

        Reads input_ids, position_ids [S], prompts [P], responses [R]; settings temperature and calculate_entropy.
        Writes `log_probs` and, with calculate_entropy, `entropy`: see Worker.score.
        """
        rows = Rows.from_tensordict(data, (), self.engine.device)
        with_entropy = setting(data, "calculate_entropy", False)
        return self.score(rows, self._infer_micro_batches(rows), setting(data, "temperature", 1.0), with_entropy)

    @fetches(*SEQUENCE_COLUMNS, *RESPONSE_COLUMNS, optional=OPTIONAL_COLUMNS)
    def update_actor(self, data: TensorDict) -> dict[str, float]:
        """Update the policy on the rows of this rank; returns metrics, writes nothing.

        Reads input_ids, position_ids [S], prompts [P] and, all [R]: responses, response_mask, loss_mask,
        old_log_probs, advantages, and if there ref_log_prob and rollout_is_weights. Settings, all set by the trainer:
        mini_batch_size and global_batch_size (rows of a mini-batch over all ranks), epochs, seed, dataloader_kwargs,
        temperature, calculate_entropy.

        Metrics are means over mini-batches: actor/pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower, loss, grad_norm,
        lr, and entropy_loss, kl_loss, kl_coef if configured.
        """
        columns = [*RESPONSE_COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in data.keys())]
        rows = Rows.from_tensordict(data, columns, self.engine.device)
        per_step = []
        for mini_batch in self._mini_batches(rows, data):
            per_step.append(self._train_mini_batch(mini_batch, data))
        metrics = {name: sum(step[name] for step in per_step) / len(per_step) for name in per_step[0]}
        metrics["actor/lr"] = self.engine.lr_scheduler_step()
        if self.actor.use_kl_loss:
            metrics["actor/kl_coef"] = self.actor.kl_loss_coef
        return metrics

    def state_dict_for_rollout(self) -> dict[str, Tensor]:
        """Full float32 copies of the weights under their Hugging Face names, for the LLM servers."""
        return self.engine.full_state_dict()

    def save_pretrained(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Write model and tokenizer in Hugging Face format: the folder can be a `model.path` again."""
        self.engine.save_pretrained(folder)
        if tokenizer is not None and self.engine.rank == 0:
            tokenizer.save_pretrained(folder)

    def save_checkpoint(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Write what actor.checkpoint.save_contents names, to go on from here: see engine/state.py."""
        contents = self.actor.checkpoint.save_contents
        self.engine.save_checkpoint(Path(folder), contents)
        if "hf_model" in contents:
            self.save_pretrained(Path(folder) / "huggingface", tokenizer)

    def load_checkpoint(self, folder: str | Path) -> None:
        """Put back what actor.checkpoint.load_contents names. Raises CheckpointError."""
        self.engine.load_checkpoint(Path(folder), self.actor.checkpoint.load_contents)

    def save_weights(self, name: str) -> None:
        """Keep a copy of the weights on the CPU, for restore_weights (verl: DetachActorWorker.save_model_to_cpu)."""
        self.engine.save_weights(name)

    def restore_weights(self, name: str) -> None:
        """Put kept weights back; the optimizer state stays."""
        self.engine.restore_weights(name)

    # Cutting

    def _mini_batches(self, rows: Rows, data: TensorDict) -> Iterator[Rows]:
        mini_batch_size = setting(data, "mini_batch_size")
        per_rank, rest = divmod(mini_batch_size, self.dp_size)
        if rest or per_rank == 0 or len(rows) % per_rank:
            raise WorkerError(
                f"{len(rows)} rows on each of {self.dp_size} rank(s) do not make whole mini-batches of "
                f"{mini_batch_size} (actor_rollout_ref.actor.ppo_mini_batch_size * rollout.n): call balance_batch "
                "before, it adds padding rows"
            )
        generator = torch.Generator().manual_seed(setting(data, "seed", 42) + self.engine.rank)
        shuffle = setting(data, "dataloader_kwargs", {}).get("shuffle", False)
        for _ in range(setting(data, "epochs", 1)):
            order = torch.randperm(len(rows), generator=generator) if shuffle else torch.arange(len(rows))
            for index in order.to(self.engine.device).split(per_rank):
                yield rows.take(index)

    def _infer_micro_batches(self, rows: Rows) -> list[Tensor]:
        rollout = self.rollout
        return self.micro_batches(
            rows,
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_max_token_len_per_gpu if rollout.log_prob_use_dynamic_bsz else None,
        )

    def _train_micro_batches(self, rows: Rows) -> list[Tensor]:
        actor = self.actor
        return self.micro_batches(
            rows,
            actor.ppo_micro_batch_size_per_gpu,
            actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else None,
        )

    # One optimizer step

    def _train_mini_batch(self, rows: Rows, data: TensorDict) -> dict[str, float]:
        num_tokens = self.engine.all_reduce(rows.response["loss_mask"].sum())
        global_batch_info = {
            "dp_size": self.dp_size,
            "batch_num_tokens": num_tokens.item(),
            "global_batch_size": setting(data, "global_batch_size"),
            "loss_scale_factor": self.actor.loss_scale_factor,
        }
        temperature = setting(data, "temperature", 1.0)
        with_entropy = setting(data, "calculate_entropy", self.actor.entropy_coeff != 0)
        micro_batches = self._train_micro_batches(rows)
        total = MetricSums()
        for number, index in enumerate(micro_batches, start=1):
            micro = rows.take(index)
            chosen = micro.response["response_mask"].bool()
            scores = self.engine.forward(micro, chosen, temperature, with_entropy)
            output = self._loss(micro, chosen, scores, global_batch_info)
            self.engine.backward(output.loss, is_last_micro_batch=number == len(micro_batches))
            total.add(output, num_tokens=int(chosen.sum()))
        grad_norm = self.engine.optimizer_step()
        return {**total.over_ranks(self.engine), "actor/grad_norm": grad_norm}

    def _loss(self, rows: Rows, chosen: Tensor, scores: TokenScores, global_batch_info: dict[str, Any]) -> LossOutput:
        log_prob = _to_response(scores.log_probs, chosen)
        entropy = None if scores.entropy is None else _to_response(scores.entropy, chosen)
        return ppo_loss(self.actor, log_prob, entropy, rows.response, global_batch_info)


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


def _to_response(flat: Tensor, chosen: Tensor) -> Tensor:
    """Values [num_chosen] at their places in [num_rows, max R], zero elsewhere."""
    return torch.zeros(chosen.shape, device=flat.device).index_put(chosen.nonzero(as_tuple=True), flat)
