"""How the driver reads a column of the batch, and what it hands to a worker.

verl 0.9.1: the `to_tensordict`, `left_right_2_no_padding` and `assign_non_tensor` calls of trainer/ppo/ray_trainer.py.
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict
from torch import Tensor

from kitlib.contract import StageRecord
from kitlib.trainer.v0.errors import SerialPipelineError
from kitlib.trainer.v0.feeding import SerialFeeding
from kitlib.trainer.v0.padding import left_right_2_no_padding
from kitlib.trainer.v0.protocol import DataProto
from kitlib.workers.actor import OPTIONAL_COLUMNS, RESPONSE_COLUMNS
from kitlib.workers.critic import CRITIC_COLUMNS

WORKER_COLUMNS = tuple(dict.fromkeys((*RESPONSE_COLUMNS, *OPTIONAL_COLUMNS, *CRITIC_COLUMNS)))


class SerialDriver(SerialFeeding):
    """What every stage method needs."""

    metrics: dict[str, Any]
    timing_raw: dict[str, float]

    def on_stage(self, record: StageRecord) -> None:
        """Begin and end of every stage."""

    def _for_worker(self, batch: DataProto, **settings: Any) -> TensorDict:
        """Every column that a worker may read, padding taken out, and the settings of one call."""
        rows = left_right_2_no_padding(batch, WORKER_COLUMNS)
        rows["loss_mask"] = rows["response_mask"]
        settings["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        for name, value in settings.items():
            rows.set_non_tensor(name, value)
        return rows

    def _column(self, batch: DataProto, name: str, hint: str = "generate_sequences writes it") -> Tensor:
        if batch.batch is None or name not in batch.batch:
            has = [] if batch.batch is None else map(str, batch.batch.keys())
            raise SerialPipelineError(f"the batch has no column {name!r} ({hint}); it has {', '.join(sorted(has))}")
        return batch.batch[name]
