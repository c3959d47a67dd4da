"""How the driver touches the queue: it pulls and pushes fields of a batch, and tells the workers what to do with it.

verl 0.9.1: the calls of transfer_queue in trainer/ppo/v1/trainer_base.py, and `batch.extra_info`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from tensordict import TensorDict

from kitlib.config import Config
from kitlib.contract import StageRecord
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, acting_as, explain_get
from kitlib.workers.bridge import partition_of


class Driver:
    """What every stage method needs."""

    config: Config
    tq: QueueProtocol
    tokenizer: Any
    strict: bool
    global_steps: int
    metrics: dict[str, Any]
    timing_raw: dict[str, float]

    def on_stage(self, record: StageRecord) -> None:
        """Begin and end of every stage; the trainer keeps the records and tells its observers."""

    def signed_as(self, name: str) -> AbstractContextManager[None]:
        """The queue calls of a stage carry its name; `watch` records it."""
        return acting_as(stage=name)

    def missing_cells(self, batch: Any, fields: Sequence[str]) -> list[tuple[str, str]]:
        """Every (key, field) that the queue lacks; used by the contract in strict mode."""
        report = explain_get(self.tq, batch.keys, list(fields), partition_id=batch.partition_id)
        return [(key, field) for key in report.missing_keys for field in fields] + list(report.missing_cells)

    def pull(self, batch: KVBatchMeta, *fields: str) -> TensorDict:
        """The driver reads fields of a batch: one row a key, in the order of `batch.keys`."""
        return self.tq.kv_batch_get(keys=batch.keys, partition_id=partition_of(batch), select_fields=list(fields))

    def push(self, batch: KVBatchMeta, **fields: torch.Tensor) -> KVBatchMeta:
        """The driver writes fields of a batch, one row a key. The handle that comes back has no extra_info."""
        columns = TensorDict(fields, batch_size=len(batch))
        return self.tq.kv_batch_put(keys=batch.keys, partition_id=partition_of(batch), fields=columns)

    def tell_workers(self, batch: KVBatchMeta, **settings: Any) -> None:
        """Put settings of one call on the handle; the workers find them beside the fields."""
        temperature = self.config.actor_rollout_ref.rollout.temperature
        batch.extra_info = {**(batch.extra_info or {}), "temperature": temperature, **settings}
