"""The trainer saved and loaded: which parts, in which order, and what becomes of prompts in flight.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._save_checkpoint, _load_checkpoint and
_reissue_inflight_prompts.

    step N:  sample ─ update ─ SAVE N ─ weight sync ─ validate ─ metrics ─ dump ─ clear
    resume:  LOAD N ─ weight sync ─ validate ─ step N + 1: reissue ─ warm-up ─ sample ─ ...

What the queue of an async mode holds when it is saved, and what becomes of it:

    marker finished or failure, with its rows    stay: they wait to be sampled (or evicted)
    marker pending or running                    submitted again from the row that is stored on the marker, at the
                                                 resumed step; rows that some of its sessions have left are cleared
    rows without a marker                        cleared: rows of step N, padding rows included. They are in the weights

No prompt is lost: one that the dataloader has handed out is in the weights, evicted, or in the saved queue. In sync
mode nothing is in flight when a step is saved, and there is no queue to save.

Differs from verl: it leaves the rows without a marker in the queue for ever. Training twice on them is impossible in
both, since sampling starts from markers. The servers continue their random draws and an adaptive KL coefficient its
way; verl's start anew. A queue with prompts in flight is refused in sync mode, where verl drops them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensordict import NonTensorData, TensorDict

from kitlib.contract import stage
from kitlib.keys import uid_of
from kitlib.replay_buffer import PartitionView
from kitlib.trainer.checkpoint import (
    DATA,
    QUEUE,
    Manifest,
    checkpoint_to_resume,
    new_draft,
    publish,
    remove_old,
)
from kitlib.trainer.parts import Parts
from kitlib.trainer.rewind import rewind_logs
from kitlib.trainer.validating import Validating
from kitlib.transfer_queue import explain_get
from kitlib.transfer_queue.errors import QueueFileError
from kitlib.workers.errors import CheckpointError
from kitlib.workers.state_files import read_state, write_state
from kitlib.workers.worker_group import CriticWorkerGroup, LocalWorkerGroup


class Checkpointing(Validating):
    """Saves after a step, loads before the first one."""

    run_dir: Path | None
    parts: Parts | None
    checkpoint_root: Path | None
    resumed_from: Path | None
    restored_mode_state: dict[str, Any] | None = None

    def mode_state(self) -> dict[str, Any]:
        """What the trainer of a mode has to remember over a restart, as JSON can hold it."""
        return {}

    def checkpointed_workers(self) -> dict[str, LocalWorkerGroup | CriticWorkerGroup]:
        """Workers with a state, by their folder in the checkpoint."""
        critic = {} if self.critic_wg is None else {"critic": self.critic_wg}
        return {"actor": self.actor_rollout_wg, **critic}

    @stage("save_checkpoint")
    def save_checkpoint(self) -> Path:
        """Write the state after the update of this step; returns the folder global_step_<N>.

        The checkpoint before stays the latest until this one is whole. Raises CheckpointError without a folder
        (trainer.default_local_dir), or for a state that a file without code cannot hold.
        """
        if self.checkpoint_root is None:
            raise CheckpointError("a checkpoint needs a folder: set trainer.default_local_dir")
        assert self.parts is not None, "call init() first"
        draft = new_draft(self.checkpoint_root, self.global_steps)
        for name, worker in self.checkpointed_workers().items():
            worker.save_checkpoint(draft / name, self.tokenizer)
        write_state(draft / DATA, self.train_dataloader.state_dict())
        if self.trainer_mode != "sync":
            self._queue_verb("save_checkpoint")(draft / QUEUE, metadata={"global_steps": self.global_steps})
        manifest = Manifest(
            self.global_steps,
            self.trainer_mode,
            num_prompts=len(self.train_dataloader.dataset),
            rollout=self.parts.llm_server_manager.state_dict(),
            kl_coef=self.kl_ctrl_in_reward.value,
            mode=self.mode_state(),
        )
        folder = publish(draft, manifest)
        remove_old(self.checkpoint_root, self.global_steps, self.config.trainer.max_actor_ckpt_to_keep)
        return folder

    def load_checkpoint(self) -> Path | None:
        """Go on from the checkpoint that trainer.resume_mode names; returns its folder, None to start anew.

        Sets `global_steps` to its step and cuts the logs of the run folder back to it. Call it before the dataloader is
        iterated and before the servers get their weights. Raises CheckpointError if it is damaged, or does not fit to
        model, data or mode.
        """
        folder = checkpoint_to_resume(self.config, self.run_dir)
        if self.checkpoint_root is not None and self.config.trainer.save_freq > 0:
            self.checkpoint_root.mkdir(parents=True, exist_ok=True)  # a sign that this run may be gone on with
        if folder is None:
            return None
        assert self.parts is not None, "call init() first"
        manifest = Manifest.read(folder)
        self._require_fitting(manifest, folder)
        for name, worker in self.checkpointed_workers().items():
            worker.load_checkpoint(folder / name)
        self.train_dataloader.load_state_dict(read_state(folder / DATA))
        if manifest.trainer_mode != "sync":
            self._load_queue(folder / QUEUE)
        self.parts.llm_server_manager.load_state_dict(manifest.rollout)
        if self.config.algorithm.kl_ctrl.type == "adaptive" and manifest.kl_coef is not None:
            self.kl_ctrl_in_reward.value = manifest.kl_coef
        if manifest.trainer_mode == self.trainer_mode:
            self.restored_mode_state = manifest.mode
        self.global_steps = manifest.global_steps
        rewind_logs(self.config, self.run_dir, self.global_steps)
        return folder

    def _require_fitting(self, manifest: Manifest, folder: Path) -> None:
        num_prompts = len(self.train_dataloader.dataset)
        if manifest.num_prompts != num_prompts:
            raise CheckpointError(
                f"{folder} was made with {manifest.num_prompts} training prompts, and there are {num_prompts}: its "
                "place in the data means nothing here. Resume with the same data.train_files, or set "
                "trainer.resume_mode=disable"
            )
        if manifest.trainer_mode != "sync" and self.trainer_mode == "sync":
            raise CheckpointError(
                f"{folder} holds prompts in flight of trainer.v1.trainer_mode={manifest.trainer_mode}, which sync has "
                "no use for: resume in an async mode"
            )

    def _load_queue(self, folder: Path) -> None:
        try:
            self._queue_verb("load_checkpoint")(folder)
        except (QueueFileError, FileNotFoundError) as error:
            raise CheckpointError(str(error)) from error
        view = PartitionView.of("train", self.tq.kv_list("train").get("train", {}))
        self.num_restored_prompts = len(view.terminal) + len(view.in_flight)

    def _queue_verb(self, name: str) -> Any:
        verb = getattr(self.tq, name, None)
        if verb is None:
            raise CheckpointError(
                f"the queue {type(self.tq).__name__} has no {name}, and the prompts in flight of "
                f"{self.trainer_mode} would be lost: set trainer.save_freq=-1 and trainer.resume_mode=disable"
            )
        return verb

    def reissue_inflight_prompts(self) -> int:
        """After a resume, at the first step: clear what is stale in `train` and submit the prompts in flight again.

        Their markers are pending once more, with the current `global_steps`. Returns the number of prompts. Raises
        CheckpointError if a marker lacks its dataset row.
        """
        view = PartitionView.of("train", self.tq.kv_list("train").get("train", {}))
        stale = [key for key in view.rows if uid_of(key) not in view.terminal]
        if stale:
            self.tq.kv_clear(keys=stale, partition_id="train")
        if not view.in_flight:
            return 0
        batch = self._stored_prompts(list(view.in_flight))
        batch["global_steps"] = NonTensorData(self.global_steps)
        return self.submit_batch_to_rollout(batch)

    def _stored_prompts(self, uids: list[str]) -> TensorDict:
        report = explain_get(self.tq, uids, partition_id="train")
        if not report.ok or "raw_prompt" not in report.requested_fields:
            raise CheckpointError(f"prompts in flight cannot be submitted again without their dataset row. {report}")
        return self.tq.kv_batch_get(keys=uids, partition_id="train")
