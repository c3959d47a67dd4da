"""Validation, metrics and dumps of the serial pipeline.

verl 0.9.1: trainer/ppo/ray_trainer.py, RayPPOTrainer._validate and _log_rollout_data, and the end of fit. The numbers
come from the same functions as in V1. Differs from verl: staleness is reported as in V1 (it is always 0), so that the
runs can be put side by side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict

from kitlib.keys import TrajectoryKey
from kitlib.trainer.metrics import (
    compute_data_metrics,
    compute_throughput_metrics,
    compute_timing_metrics,
    staleness_metrics,
    turn_metrics,
)
from kitlib.trainer.rollout_dump import RolloutWriter
from kitlib.trainer.v0.feeding import prompts_to_dataproto
from kitlib.trainer.v0.padding import left_right_2_no_padding
from kitlib.trainer.v0.protocol import DataProto, pad_dataproto_to_divisor, unpad_dataproto
from kitlib.trainer.v0.recording import recorded
from kitlib.trainer.v0.stages import SerialStages
from kitlib.trainer.validation import ValidationRows, validation_metrics


class Reporting(SerialStages):
    """What the trainer says about a batch; nothing here changes the policy."""

    tokenizer: Any
    val_dataloader: Any
    epoch: int
    rollout_writer: RolloutWriter | None

    @recorded("testing")
    def validate(self) -> dict[str, float]:
        """Run the validation prompts with `rollout.val_kwargs`; returns val-core/* and val-aux/*.

        With `trainer.validation_data_dir` also writes the rows as JSON lines.
        """
        rows = ValidationRows()
        folder = self.config.trainer.validation_data_dir
        writer = RolloutWriter(self.tokenizer, folder=Path(folder)) if folder else None
        num_sessions = self.config.actor_rollout_ref.rollout.val_kwargs.n
        for prompts in self.val_dataloader:
            batch = prompts_to_dataproto(prompts).repeat(num_sessions, interleave=True)
            gen_batch = self.get_gen_batch(batch)
            gen_batch.meta_info["validate"] = True
            padded, pad_size = pad_dataproto_to_divisor(gen_batch, len(self.agent_loop_manager.workers))
            output = self.agent_loop_manager.generate_sequences(padded)
            self._collect(batch.union(unpad_dataproto(output, pad_size)), num_sessions, rows, writer)
        return validation_metrics(rows)

    def _collect(self, batch: DataProto, num_sessions: int, rows: ValidationRows, writer: RolloutWriter | None) -> None:
        """Keep the scores of one validation batch."""
        scores = self._column(batch, "rm_scores").sum(dim=1).tolist()
        objects = batch.non_tensor_batch
        names = batch.meta_info["reward_extra_keys"]
        infos = [{"reward": score, **{name: objects[name][row] for name in names}} for row, score in enumerate(scores)]
        rows.infos += infos
        rows.uids += objects["uid"].tolist()
        rows.data_sources += objects["data_source"].tolist()
        rows.num_turns += objects["__num_turns__"].tolist()
        sessions = zip(objects["data_source"], objects["uid"], strict=True)
        rows.expected |= dict.fromkeys(sessions, num_sessions)
        if writer is not None:
            self._write(writer, batch, infos)

    @recorded()
    def compute_metrics(self, batch: DataProto) -> dict[str, float]:
        """The numbers of the step under verl's names. "Clipped" means: as long as the config allows."""
        prompt_width, response_width = (self._column(batch, name).shape[1] for name in ("prompts", "responses"))
        attended = self._column(batch, "attention_mask").split([prompt_width, response_width], dim=1)
        lengths = [mask.sum(dim=1) for mask in attended]  # of prompts and responses, [num_rows] each
        names = ["response_mask", "advantages", "returns", "token_level_scores", "token_level_rewards"]
        names += ["values"] if self.critic is not None else []
        columns = {name: self._column(batch, name) for name in names}
        columns |= {"prompt_length": lengths[0], "response_length": lengths[1]}
        num_tokens, num_response_tokens = int(torch.cat(lengths).sum()), int(lengths[1].sum())
        self.metrics |= {"training/global_step": self.global_steps, "training/epoch": self.epoch}
        self.metrics |= compute_data_metrics(columns, prompt_width, response_width)
        self.metrics |= turn_metrics(batch.non_tensor_batch["__num_turns__"].tolist())
        self.metrics |= compute_timing_metrics(self.timing_raw, num_response_tokens, num_tokens)
        self.metrics |= compute_throughput_metrics(self.timing_raw, num_tokens, self.worker.dp_size)
        self.metrics |= staleness_metrics(self._weight_versions(batch), self.global_steps)
        return self.metrics

    @staticmethod
    def _weight_versions(batch: DataProto) -> list[dict[str, int]]:
        """What V1 keeps in the tags of a row."""
        names = ("min_global_steps", "max_global_steps")
        rows = zip(*(batch.non_tensor_batch[name] for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    @recorded("dump_rollout_generations")
    def log_rollout_data(self, batch: DataProto) -> None:
        """Write prompts, responses and scores of the step as JSON lines."""
        if self.rollout_writer is not None:
            self._write(self.rollout_writer, batch)

    def _write(self, writer: RolloutWriter, batch: DataProto, extra: list[dict[str, Any]] | None = None) -> None:
        rows: TensorDict = left_right_2_no_padding(batch, ["rm_scores"])
        rows["reward_model"] = NonTensorStack(*batch.non_tensor_batch["reward_model"])
        sessions = zip(batch.non_tensor_batch["uid"], batch.non_tensor_batch["session_id"], strict=True)
        keys = [str(TrajectoryKey(uid, session_id, 0)) for uid, session_id in sessions]
        writer.write(keys, rows, self.global_steps, extra=extra)
