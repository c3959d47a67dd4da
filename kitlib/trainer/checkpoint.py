"""Checkpoints on disk: their layout, which one is the latest, and that a half-written one never counts.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._save_checkpoint and _load_checkpoint (layout), and
utils/checkpoint/checkpoint_manager.py (find_latest_ckpt_path, ensure_checkpoint_capacity).

    <trainer.default_local_dir>/
      global_step_8/
        actor/, critic/                    see workers/engine/state.py
        data.pt                            position in the training data
        transfer_queue/                    prompts in flight and finished groups (async modes)
        checkpoint.json                    what the folder has to hold: step, mode, size of every file
      latest_checkpointed_iteration.txt    "8"

    write into .global_step_8.draft ──rename──> global_step_8 ──replace──> latest_checkpointed_iteration.txt
    killed here: the draft is ignored │ killed here: not named yet │ killed here: complete

Differs from verl, which writes into the final folder: a kill leaves a folder there that looks like a checkpoint, and a
pointer that names a missing folder starts training anew. `max_actor_ckpt_to_keep` removes whole checkpoints, verl their
actor only. Left out: remote storage, deletion after loading.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kitlib.config import Config
from kitlib.transfer_queue.checkpoint import replace_text
from kitlib.workers.errors import CheckpointError

SCHEMA, VERSION = "kitlib.checkpoint", 1
MANIFEST, LATEST = "checkpoint.json", "latest_checkpointed_iteration.txt"
DATA, QUEUE = "data.pt", "transfer_queue"


@dataclass
class Manifest:
    """What a checkpoint says about itself."""

    global_steps: int  # the step whose update is the last one in the weights
    trainer_mode: str
    num_prompts: int  # rows of the training set that data.pt points into
    rollout: list[Any] = field(default_factory=list)  # see LLMServerManager.state_dict
    kl_coef: float | None = None  # of the penalty in the reward, which an adaptive controller moves
    mode: dict[str, Any] = field(default_factory=dict)  # see Checkpointing.mode_state
    files: dict[str, int] = field(default_factory=dict)  # path in the folder -> bytes
    schema: str = SCHEMA
    version: int = VERSION

    def write(self, folder: Path) -> None:
        """List the files of a finished draft and put the manifest beside them."""
        self.files = {str(path.relative_to(folder)): path.stat().st_size for path in _files_of(folder)}
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder that holds every file it names, whole. Raises CheckpointError otherwise."""
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder} is no folder (trainer.resume_from_path names one such as .../global_step_8)"
            )
        manifest = cls._parse(folder / MANIFEST)
        for name, num_bytes in manifest.files.items():
            found = (folder / name).stat().st_size if (folder / name).exists() else 0
            if found != num_bytes:
                raise CheckpointError(f"{folder} is incomplete: {name} has {found} of {num_bytes} bytes")
        return manifest

    @classmethod
    def _parse(cls, path: Path) -> Manifest:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["schema"] != SCHEMA or values["version"] > VERSION:
                raise CheckpointError(
                    f"{path} has schema {values['schema']!r} version {values['version']}; "
                    f"this version reads {SCHEMA!r} up to {VERSION}"
                )
            return cls(**values)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path.parent} is no checkpoint of kitlib: it has no {path.name}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{path} is damaged, or no manifest of kitlib: {error!r}") from error


def checkpoint_root(config: Config, run_dir: Path | None) -> Path | None:
    """The folder of a run's checkpoints: trainer.default_local_dir, else `checkpoints` in the run folder, else none.

    Raises CheckpointError if checkpoints are to be written and there is no folder for them.
    """
    if config.trainer.default_local_dir is not None:
        return Path(config.trainer.default_local_dir)
    if run_dir is None and config.trainer.save_freq > 0:
        raise CheckpointError(
            f"trainer.save_freq={config.trainer.save_freq} needs a folder: set trainer.default_local_dir, or give the "
            "run a run folder (kitlib.run_dir)"
        )
    return run_dir / "checkpoints" if run_dir is not None else None


def checkpoint_to_resume(config: Config, run_dir: Path | None) -> Path | None:
    """The checkpoint that trainer.resume_mode asks for; None to start anew. Raises CheckpointError."""
    mode = config.trainer.resume_mode
    if mode == "resume_path":
        return Path(config.trainer.resume_from_path)
    root = checkpoint_root(config, run_dir)
    return find_latest(root) if mode == "auto" and root is not None else None


def find_latest(root: Path) -> Path | None:
    """The folder that latest_checkpointed_iteration.txt names; None if nothing was saved yet.

    Raises CheckpointError if the pointer is no number or the folder is gone.
    """
    pointer = root / LATEST
    if not pointer.exists():
        return None
    try:
        folder = step_folder(root, int(pointer.read_text(encoding="utf-8")))
    except ValueError as error:
        raise CheckpointError(f"{pointer} holds no step number: {error}") from error
    if not folder.exists() and _hidden(folder, "old").exists():  # killed while it was about to be replaced
        _hidden(folder, "old").rename(folder)
    if not folder.exists():
        others = ", ".join(path.name for _, path in sorted(_complete(root).items())) or "none"
        raise CheckpointError(
            f"{pointer} names {folder.name}, which is gone; there are: {others}. Name one with trainer.resume_mode="
            "resume_path trainer.resume_from_path=..., or start anew with trainer.resume_mode=disable"
        )
    return folder


def new_draft(root: Path, global_steps: int) -> Path:
    """An empty folder to write a checkpoint into; what killed runs have left behind is removed."""
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    draft = _hidden(step_folder(root, global_steps), "draft")
    draft.mkdir()
    return draft


def publish(draft: Path, manifest: Manifest) -> Path:
    """Turn a finished draft into the latest checkpoint. Returns its folder."""
    root, folder = draft.parent, step_folder(draft.parent, manifest.global_steps)
    manifest.write(draft)
    _flush(draft)
    if folder.exists():  # of a run that was further before it was set back
        folder.rename(_hidden(folder, "old"))
    draft.rename(folder)
    replace_text(root / LATEST, str(manifest.global_steps))
    _sweep(root)
    return folder


def remove_old(root: Path, global_steps: int, num_to_keep: int | None) -> None:
    """Keep the newest `num_to_keep` checkpoints up to `global_steps`, which was just saved; None keeps all.

    Later ones belong to a run that was set back; they stay.
    """
    earlier = [step for step in sorted(_complete(root)) if step <= global_steps]
    for step in earlier[:-num_to_keep] if num_to_keep else []:
        folder = step_folder(root, step)
        folder.rename(_hidden(folder, "old"))  # in one step: a half-removed folder must not look like a checkpoint
    _sweep(root)


def step_folder(root: Path, global_steps: int) -> Path:
    """root/global_step_8"""
    return root / f"global_step_{global_steps}"


def _hidden(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}")


def _complete(root: Path) -> dict[int, Path]:
    """{step: folder} of the checkpoints that were finished."""
    numbers = {path: path.name.removeprefix("global_step_") for path in root.glob("global_step_*") if path.is_dir()}
    return {int(number): path for path, number in numbers.items() if number.isdigit()}


def _sweep(root: Path) -> None:
    for leftover in root.glob(".global_step_*"):
        shutil.rmtree(leftover)


def _files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _flush(folder: Path) -> None:
    """Have the disk write every file, so that a power cut after the rename finds them whole, too."""
    for path in _files_of(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
