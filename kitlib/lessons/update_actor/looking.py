"""An update to look at: its gradient and metrics without the step, or the metrics of each of its mini-batches.

Both run the stage `update_actor` of the trainer as it is. Settings of the actor can be changed for one call:

    dry_run(trainer, batch, loss_agg_mode="seq-mean-token-mean").metrics["actor/pg_loss"]
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from kitlib.config import load_config
from kitlib.inspector import View
from kitlib.inspector.render.model import Column, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.lessons.expect import LessonError
from kitlib.transfer_queue import KVBatchMeta
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.engine.optim import build_lr_scheduler

ACTOR = "actor_rollout_ref.actor"


@dataclass(frozen=True)
class Look:
    """What one optimizer step would have used."""

    gradient: Tensor
    """Of all weights, one behind the other, before clipping; float32 [number of weights] on the CPU."""
    metrics: dict[str, float]

    def __getitem__(self, name: str) -> float:
        """A metric, with or without `actor/`."""
        return self.metrics[name if name in self.metrics else f"actor/{name}"]


def dry_run(trainer: Any, batch: KVBatchMeta, **settings: Any) -> Look:
    """The gradient and the metrics of an update that is one mini-batch. No weight, no field and no metric changes.

    settings: of the actor, for this call alone; `{"policy_loss.loss_mode": name}` for one that lies deeper.
    """
    gradients: list[Tensor] = []
    kept = dict(trainer.metrics)
    with _settings(trainer, settings, record=False) as worker:
        engine = worker.engine

        def look() -> float:
            gradients.append(torch.cat([_whole(p.grad, p) for p in engine.model.parameters()]).float().cpu())
            engine.model.zero_grad(set_to_none=True)
            return float(gradients[-1].norm())

        try:
            trainer.metrics = {}
            with patch.object(engine, "optimizer_step", look), patch.object(engine, "lr_scheduler_step", lambda: 0.0):
                trainer.update_actor(batch)
            metrics = {name: value for name, value in trainer.metrics.items() if name != "actor/lr"}
        finally:
            trainer.metrics = kept
    if len(gradients) != 1:
        raise LessonError(f"a dry run takes one mini-batch, and these settings make {len(gradients)} of the batch")
    return Look(gradients[0], metrics)


def mini_batches(trainer: Any, batch: KVBatchMeta, **settings: Any) -> list[dict[str, float]]:
    """Update the actor on the batch; the metrics of each mini-batch in order. `trainer.metrics` has the means."""
    seen: list[dict[str, float]] = []
    with _settings(trainer, settings) as worker:
        step = worker._step

        def listen(*args: Any) -> dict[str, float]:
            seen.append(step(*args))
            return seen[-1]

        with patch.object(worker, "_step", listen):
            trainer.update_actor(batch)
    return seen


def numbers(rows: Mapping[str, Any], names: Sequence[str], title: str = "", digits: int = 4) -> View:
    """A table of numbers: a line a name of `rows`, a column a metric of `actor/`."""
    columns = (Column(""), *(Column(name, align="right") for name in names))
    lines = tuple(
        (cell(label, State.STRONG), *(cell(_number(row, name, digits)) for name in names))
        for label, row in rows.items()
    )
    return View(ViewModel(line((title, State.STRONG)), tables=(Table(columns, lines),)))


def _number(row: Any, name: str, digits: int) -> str:
    value = row[name] if isinstance(row, Look) else row.get(name, row.get(f"actor/{name}", math.nan))
    return f"{value + 0.0:.{digits}f}".replace("-0." + "0" * digits, "0." + "0" * digits)


def learning_rates(*optim: str, num_steps: int = 60) -> list[float]:
    """The learning rate of each update under settings of `actor.optim`, such as "lr_warmup_steps=10"."""
    words = [f"{ACTOR}.optim.{word}" for word in (*optim, f"total_training_steps={num_steps}")]
    settings = load_config(words).actor_rollout_ref.actor.optim
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=settings.lr)
    factor = build_lr_scheduler(optimizer, settings).lr_lambdas[0]
    return [settings.lr * factor(step) for step in range(num_steps)]


@contextmanager
def _settings(trainer: Any, settings: Mapping[str, Any], record: bool | None = None) -> Iterator[ActorRolloutRefWorker]:
    """The trainer and its actor under changed settings; gives the actor's worker."""
    config, worker = trainer.config, trainer.actor_rollout_wg.worker
    changed = copy.deepcopy(config)
    for name, value in settings.items():
        changed.update(f"{ACTOR}.{name}", value, "for one look")
    if record is not None:
        changed.update("kitlib.record_update", record, "for one look")
    trainer.config, worker.settings = changed, changed.actor_rollout_ref.actor
    try:
        yield worker
    finally:
        trainer.config, worker.settings = config, config.actor_rollout_ref.actor


def _whole(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """A gradient in one piece and one dimension; zeros if the loss did not touch the parameter."""
    if gradient is None:
        return torch.zeros(parameter.numel(), device=parameter.device)
    return (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).flatten()
