"""How prompts enter: from the dataloader to markers in the queue and sessions in the agent loop.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._fetch_one_gen_batch, _next_train_batch,
_submit_batch_to_rollout, _add_prompts_to_generate and _add_async_warmup_batches.
"""

from __future__ import annotations

import math
from typing import Any

from tensordict import NonTensorData, TensorDict

from kitlib.agent_loop import AgentLoopManagerTQ
from kitlib.config import Config
from kitlib.contract import stage
from kitlib.keys import new_uid
from kitlib.trainer.errors import TrainerError
from kitlib.transfer_queue import QueueProtocol, list_of_dict_to_tensordict


class Feeding:
    """Takes prompts from the dataloader and submits them; never waits for what is generated."""

    config: Config
    tq: QueueProtocol
    trainer_mode: str
    global_steps: int
    train_dataloader: Any
    train_iterator: Any
    agent_loop_manager: AgentLoopManagerTQ
    num_restored_prompts: int = 0  # markers that came with the queue of a checkpoint

    def fetch_one_gen_batch(self) -> TensorDict:
        """Take one `gen_batch_size` chunk of *prompts* from the dataloader and give each a uid.

        The name misleads: finished trajectories come from `ReplayBuffer.sample`, not from here.
        """
        try:
            rows = next(self.train_iterator)
        except StopIteration:
            self.train_iterator = iter(self.train_dataloader)
            rows = next(self.train_iterator)
        return prompts_to_tensordict(rows)

    def next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """`num_prompts` prompts (default `data.train_batch_size`), in whole chunks of `data.gen_batch_size`."""
        num_prompts = num_prompts or self.config.data.train_batch_size
        chunk = self.config.data.gen_batch_size or self.config.data.train_batch_size
        if num_prompts % chunk:
            raise TrainerError(f"{num_prompts} prompts are no whole number of fetches of data.gen_batch_size={chunk}")
        chunks = [self.fetch_one_gen_batch() for _ in range(num_prompts // chunk)]
        batch = chunks[0] if len(chunks) == 1 else TensorDict.cat(chunks)
        batch["global_steps"] = NonTensorData(self.global_steps)
        return batch

    @stage("submit_batch_to_rollout")
    def submit_batch_to_rollout(self, batch: TensorDict) -> int:
        """Register the prompts as pending markers in `train` and start the agent loop; returns at once.

        The async modes store the dataset row on the marker, so that a restart can submit it again. Returns the number
        of prompts.
        """
        self.register_prompts(batch, "train", with_rows=self.trainer_mode != "sync")
        self.agent_loop_manager.generate_sequences(batch)
        return len(batch)

    def add_prompts_to_generate(self, num_prompts: int) -> int:
        """Fetch and submit exactly that many prompts; the replay buffer replaces evicted groups with it."""
        return self.submit_batch_to_rollout(self.next_train_batch(num_prompts))

    def prepare_step(self) -> None:
        """Submit one training batch."""
        self.submit_batch_to_rollout(self.next_train_batch())

    def add_warmup_batches(self, num_warmup_batches: float) -> None:
        """Fill the window by which generation runs ahead (async modes); 1.5 means one and a half training batches.

        Prompts that a checkpoint has brought back count.
        """
        chunk = self.config.data.gen_batch_size or self.config.data.train_batch_size
        num_prompts = math.floor(num_warmup_batches * self.config.data.train_batch_size / chunk) * chunk
        num_prompts -= self.num_restored_prompts
        if num_prompts > 0:
            self.add_prompts_to_generate(num_prompts)

    def register_prompts(self, batch: TensorDict, partition_id: str, with_rows: bool = False) -> list[str]:
        """Put a pending marker for each prompt; returns the uids."""
        uids = batch.get("uid").tolist()
        tags = [{"is_prompt": True, "status": "pending", "global_steps": self.global_steps} for _ in uids]
        fields = batch.exclude("global_steps") if with_rows else None
        self.tq.kv_batch_put(keys=uids, partition_id=partition_id, fields=fields, tags=tags)
        return uids


def prompts_to_tensordict(rows: dict[str, Any]) -> TensorDict:
    """Collated dataloader rows, each with a fresh uid: tensors stay dense, everything else becomes one object a row."""
    num_rows = len(rows["raw_prompt"])
    columns = {**rows, "uid": [new_uid() for _ in range(num_rows)]}
    return list_of_dict_to_tensordict([{name: column[i] for name, column in columns.items()} for i in range(num_rows)])
