"""The validation stage: every validation prompt through the agent loop, in the partition `val`.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._validate. What becomes of the scores is in validation.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensordict import NonTensorData

from kitlib.contract import stage
from kitlib.trainer.feeding import Feeding, prompts_to_tensordict
from kitlib.trainer.rollout_dump import RolloutWriter
from kitlib.trainer.stages import PPOStages
from kitlib.trainer.validation import ValidationRows, final_rows, validation_metrics
from kitlib.transfer_queue import KVBatchMeta

_FIELDS = ("prompts", "responses", "uid", "rm_scores", "num_turns", "reward_model", "data_source", "extra_fields")


class Validating(Feeding, PPOStages):
    """Runs the validation set with `rollout.val_kwargs`; nothing of it stays in the queue."""

    val_dataloader: Any

    @stage("validate")
    def validate(self) -> dict[str, float]:
        """Returns val-core/* and val-aux/*; with `trainer.validation_data_dir` also writes the rows as JSON lines."""
        rows = ValidationRows()
        folder = self.config.trainer.validation_data_dir
        writer = RolloutWriter(self.tokenizer, folder=Path(folder)) if folder else None
        for prompts in self.val_dataloader:
            batch = prompts_to_tensordict(prompts)
            batch["global_steps"] = NonTensorData(self.global_steps)
            batch["validate"] = NonTensorData(True)
            uids = self.register_prompts(batch, "val")
            num_sessions = self.config.actor_rollout_ref.rollout.val_kwargs.n
            sources = batch.get("data_source").tolist()
            rows.expected |= dict.fromkeys(zip(sources, uids, strict=True), num_sessions)
            self.agent_loop_manager.generate_sequences(batch)
            sampled, _ = self.replay_buffer.sample(self.global_steps, "val", batch_size=len(uids))
            if len(sampled):
                if self.reward_model is not None:
                    sampled = self.compute_reward_colocate(sampled)
                self._collect(sampled.select_keys([sampled.keys[i] for i in final_rows(sampled.keys)]), rows, writer)
                self.tq.kv_clear(keys=sampled.keys, partition_id="val")
        return validation_metrics(rows)

    def _collect(self, batch: KVBatchMeta, rows: ValidationRows, writer: RolloutWriter | None) -> None:
        """Keep the scores of one validation batch, one row a session."""
        data = self.pull(batch, *_FIELDS)
        infos = []
        for scores, extra in zip(data["rm_scores"].unbind(), data.get("extra_fields").tolist(), strict=True):
            infos.append({"reward": scores.sum().item(), **extra.get("reward_extra_info", {})})
        rows.infos += infos
        rows.uids += data.get("uid").tolist()
        rows.data_sources += data.get("data_source").tolist()
        if "num_turns" in data:
            rows.num_turns += data.get("num_turns").tolist()
        if writer is not None:
            writer.write(batch.keys, data, self.global_steps, extra=infos)
