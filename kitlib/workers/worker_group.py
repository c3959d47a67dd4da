"""The workers as the trainer sees them: methods that take and give metadata.

verl 0.9.1: single_controller/base/worker_group.py, WorkerGroup, and single_controller/ray/base.py, RayWorkerGroup,
whose methods are generated from the worker class. Here they are written out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from kitlib.transfer_queue import KVBatchMeta, QueueProtocol
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.bridge import call_by_meta
from kitlib.workers.critic import CriticWorker
from kitlib.workers.reference import ReferenceWorker
from kitlib.workers.training import TrainingWorker


class _TrainedWorkerGroup:
    """A worker in this process that learns: calls run at once, in the caller's thread."""

    worker: TrainingWorker

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks: 1."""
        return self.worker.dp_size

    def save_pretrained(self, folder: str | Path, tokenizer: Any = None) -> None:
        """Write the model (and the tokenizer) in Hugging Face format."""
        self.worker.save_pretrained(folder, tokenizer)

    def save_checkpoint(self, folder: str | Path, tokenizer: Any = None) -> None:
        """Write weights, optimizer, schedule and random states to a folder."""
        self.worker.save_checkpoint(folder, tokenizer)

    def load_checkpoint(self, folder: str | Path) -> None:
        """Put back what save_checkpoint has written."""
        self.worker.load_checkpoint(folder)

    def close(self) -> None:
        """End the workers."""
        self.worker.close()


class LocalWorkerGroup(_TrainedWorkerGroup):
    """The actor worker of this process."""

    def __init__(self, worker: ActorRolloutRefWorker, tq: QueueProtocol) -> None:
        self.worker: ActorRolloutRefWorker = worker
        self.tq = tq

    def compute_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write `log_probs` (and `entropy`) of the rows of `batch`; see ActorRolloutRefWorker.compute_log_prob."""
        return _meta(call_by_meta(self.tq, self.worker.compute_log_prob, batch))

    def update_actor(self, batch: KVBatchMeta) -> dict[str, Any]:
        """Update the policy on the rows of `batch`; returns the metrics actor/*."""
        return _metrics(call_by_meta(self.tq, self.worker.update_actor, batch))

    def state_dict_for_rollout(self) -> dict[str, Tensor]:
        """Full float32 copies of the weights, by Hugging Face name."""
        return self.worker.state_dict_for_rollout()

    def save_weights(self, name: str) -> None:
        """Keep a copy of the weights on the CPU under `name`."""
        self.worker.save_weights(name)

    def restore_weights(self, name: str) -> None:
        """Put the weights kept under `name` back."""
        self.worker.restore_weights(name)


class CriticWorkerGroup(_TrainedWorkerGroup):
    """The critic worker of this process."""

    def __init__(self, worker: CriticWorker, tq: QueueProtocol) -> None:
        self.worker: CriticWorker = worker
        self.tq = tq

    def compute_values(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Write `values` [S] of the rows of `batch`; see CriticWorker.compute_values."""
        return _meta(call_by_meta(self.tq, self.worker.compute_values, batch))

    def update_critic(self, batch: KVBatchMeta) -> dict[str, Any]:
        """Fit the values to the returns of `batch`; returns the metrics critic/*."""
        return _metrics(call_by_meta(self.tq, self.worker.update_critic, batch))


class ReferenceWorkerGroup:
    """The reference worker of this process, or the actor, which is its own reference without its LoRA adapter."""

    def __init__(self, worker: ReferenceWorker | ActorRolloutRefWorker, tq: QueueProtocol) -> None:
        self.worker = worker
        self.tq = tq

    def compute_ref_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Overwrite `log_probs` of the rows of `batch` with the reference's; see ReferenceWorker."""
        return _meta(call_by_meta(self.tq, self.worker.compute_ref_log_prob, batch))

    def close(self) -> None:
        """End the worker; the actor is ended by its own group."""
        if isinstance(self.worker, ReferenceWorker):
            self.worker.close()


def _meta(result: Any) -> KVBatchMeta:
    assert isinstance(result, KVBatchMeta)
    return result


def _metrics(result: KVBatchMeta | dict[str, Any]) -> dict[str, Any]:
    """The metrics of an update, also if it has written columns as well."""
    metrics = (result.extra_info or {}).pop("metrics") if isinstance(result, KVBatchMeta) else result
    assert isinstance(metrics, dict)
    return metrics
