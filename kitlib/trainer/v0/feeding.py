"""How prompts enter the serial pipeline: from the dataloader into a DataProto.

verl 0.9.1: trainer/ppo/ray_trainer.py, the head of RayPPOTrainer.fit, and _get_gen_batch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kitlib.config import Config
from kitlib.keys import new_uid
from kitlib.trainer.v0.columns import object_column
from kitlib.trainer.v0.protocol import DataProto

# What the reward function and the grouping want; it stays in the batch, the rest goes to the agent loop alone.
REWARD_KEYS = ("data_source", "reward_model", "extra_info", "uid")


class SerialFeeding:
    """Takes prompts from the dataloader."""

    config: Config
    global_steps: int
    train_dataloader: Any
    train_iterator: Any

    def next_batch(self) -> DataProto:
        """`data.train_batch_size` prompts, one row each, with a fresh uid."""
        chunks = [self._next_chunk()]
        while sum(map(len, chunks)) < self.config.data.train_batch_size:
            chunks.append(self._next_chunk())
        return DataProto.concat(chunks)

    def get_gen_batch(self, batch: DataProto) -> DataProto:
        """Take the columns out of `batch` that only generation reads, and return them with copies of REWARD_KEYS."""
        gen_batch = batch.pop(non_tensor_batch_keys=batch.non_tensor_batch.keys() - set(REWARD_KEYS))
        gen_batch.non_tensor_batch.update(batch.non_tensor_batch)
        gen_batch.meta_info["global_steps"] = self.global_steps
        return gen_batch

    def _next_chunk(self) -> DataProto:
        try:
            rows = next(self.train_iterator)
        except StopIteration:
            self.train_iterator = iter(self.train_dataloader)
            rows = next(self.train_iterator)
        return prompts_to_dataproto(rows)


def prompts_to_dataproto(rows: dict[str, Any]) -> DataProto:
    """Collated dataloader rows, each with a fresh uid: tensors go to `batch`, everything else to object columns."""
    columns = {name: col if isinstance(col, Tensor) else object_column(col) for name, col in rows.items()}
    columns["uid"] = object_column([new_uid() for _ in rows["raw_prompt"]])
    return DataProto.from_single_dict(columns)
