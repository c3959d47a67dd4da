"""Checkpoints on disk: which one counts, what a kill at any file operation leaves, and what a broken one is told."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kitlib.config import load_config
from kitlib.trainer.checkpoint import (
    LATEST,
    MANIFEST,
    Manifest,
    checkpoint_root,
    checkpoint_to_resume,
    find_latest,
    new_draft,
    publish,
    remove_old,
)
from kitlib.trainer.rewind import rewind_logs
from kitlib.workers.errors import CheckpointError


def save(root: Path, step: int, content: str = "weights", num_to_keep: int | None = None) -> Path:
    """A checkpoint as the trainer makes it, with two small files."""
    draft = new_draft(root, step)
    (draft / "actor").mkdir()
    (draft / "actor" / "model.safetensors").write_text(content)
    (draft / "data.pt").write_text("position")
    folder = publish(draft, Manifest(step, "sync", num_prompts=16))
    remove_old(root, step, num_to_keep)
    return folder


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_the_layout_is_that_of_verl_with_a_manifest(tmp_path: Path) -> None:
    folder = save(tmp_path / "deep" / "checkpoints", 8)
    assert names(folder.parent) == ["global_step_8", LATEST]
    assert names(folder) == ["actor", MANIFEST, "data.pt"]
    assert (folder.parent / LATEST).read_text() == "8"
    manifest = Manifest.read(folder)
    assert manifest.global_steps == 8
    assert manifest.files == {"actor/model.safetensors": 7, "data.pt": 8}


def test_the_latest_is_the_last_saved_and_there_may_be_none(tmp_path: Path) -> None:
    assert find_latest(tmp_path) is None
    save(tmp_path, 8)
    save(tmp_path, 4)  # a run that was set back
    assert find_latest(tmp_path) == tmp_path / "global_step_4"


class Killed(BaseException):
    """Ends the code where it stands, like a kill: nothing in kitlib catches it."""


@dataclass
class FileOperations:
    """Counts what writes to the disk, and kills at one of them. Python announces each to its audit hooks."""

    num_seen: int = 0
    fatal: int | None = None  # None: off

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.fatal is None or not self.is_writing(event, arguments):
            return
        self.num_seen += 1
        if self.num_seen > self.fatal:
            raise Killed

    @staticmethod
    def is_writing(event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            return isinstance(arguments[1], str) and bool(set(arguments[1]) & set("wxa+"))
        return event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir")


OPERATIONS = FileOperations()
sys.addaudithook(OPERATIONS)  # for good: a hook cannot be removed


def kills_while_saving(root: Path, step: int) -> Iterator[None]:
    """Save `step` again and again from the same state, each time killed at a later operation, until it gets through."""
    backup = shutil.copytree(root, root.with_name("backup"))
    for number in itertools.count():
        OPERATIONS.num_seen, OPERATIONS.fatal = 0, number
        try:
            save(root, step, content="new weights", num_to_keep=2)
            return
        except Killed:
            OPERATIONS.fatal = None
            yield
        finally:
            OPERATIONS.fatal = None
        shutil.rmtree(root)
        shutil.copytree(backup, root)


@pytest.mark.parametrize("step", [3, 2, 1], ids=["the next step", "the latest once more", "an earlier step once more"])
def test_killed_at_any_file_operation_the_latest_checkpoint_is_whole(tmp_path: Path, step: int) -> None:
    root = tmp_path / "checkpoints"
    save(root, 1, content="weights of 1")
    save(root, 2, content="weights of 2")
    num_kills, found = 0, set()
    for _ in kills_while_saving(root, step):
        latest = find_latest(root)
        assert latest is not None
        manifest = Manifest.read(latest)
        found.add((manifest.global_steps, (latest / "actor" / "model.safetensors").read_text()))
        save(root, 4)  # and the next save gets through, and tidies up
        assert not [name for name in names(root) if name.startswith(".")]
        num_kills += 1
    assert num_kills > 8
    assert found == {(2, "weights of 2"), (step, "new weights")}


def test_only_the_newest_are_kept_and_those_of_a_run_that_was_set_back_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3, 9):
        save(tmp_path, step)
    save(tmp_path, 4, num_to_keep=2)
    assert names(tmp_path) == ["global_step_3", "global_step_4", "global_step_9", LATEST]
    save(tmp_path, 5, num_to_keep=1)
    assert names(tmp_path) == ["global_step_5", "global_step_9", LATEST]


def test_a_damaged_checkpoint_is_told_in_a_sentence(tmp_path: Path) -> None:
    folder = save(tmp_path, 8)
    os.truncate(folder / "actor" / "model.safetensors", 3)
    with pytest.raises(CheckpointError, match="global_step_8 is incomplete: actor/model.safetensors has 3 of 7 bytes"):
        Manifest.read(folder)
    (folder / "actor" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="actor/model.safetensors has 0 of 7 bytes"):
        Manifest.read(folder)
    text = (folder / MANIFEST).read_text()
    for damaged in ("", text[:30], "[]", '{"schema": "kitlib.checkpoint", "version": 1}'):
        (folder / MANIFEST).write_text(damaged)
        with pytest.raises(CheckpointError, match="checkpoint.json is damaged, or no manifest of kitlib"):
            Manifest.read(folder)
    (folder / MANIFEST).write_text(json.dumps({**json.loads(text), "version": 9}))
    with pytest.raises(CheckpointError, match="version 9; this version reads"):
        Manifest.read(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="global_step_8 is no checkpoint of kitlib: it has no checkpoint.json"):
        Manifest.read(folder)
    with pytest.raises(CheckpointError, match="global_step_7 is no folder"):
        Manifest.read(tmp_path / "global_step_7")


def test_a_pointer_that_points_nowhere_names_what_there_is(tmp_path: Path) -> None:
    for step in (4, 8):
        save(tmp_path, step)
    (tmp_path / LATEST).write_text("9")
    with pytest.raises(
        CheckpointError, match=r"names global_step_9, which is gone; there are: global_step_4, global_s"
    ):
        find_latest(tmp_path)
    (tmp_path / LATEST).write_text("nine")
    with pytest.raises(CheckpointError, match="holds no step number"):
        find_latest(tmp_path)


def test_where_checkpoints_go_and_which_one_is_resumed(tmp_path: Path) -> None:
    run_dir, other = tmp_path / "run", tmp_path / "other"
    assert checkpoint_root(load_config(), run_dir) == run_dir / "checkpoints"
    assert checkpoint_root(load_config(), None) is None
    elsewhere = load_config([f"trainer.default_local_dir={other}", "trainer.save_freq=1"])
    assert checkpoint_root(elsewhere, run_dir) == other
    with pytest.raises(CheckpointError, match="trainer.save_freq=5 needs a folder: set trainer.default_local_dir"):
        checkpoint_root(load_config(["trainer.save_freq=5"]), None)

    save(run_dir / "checkpoints", 3)
    folder = save(other, 2)
    assert checkpoint_to_resume(load_config(), run_dir) == run_dir / "checkpoints" / "global_step_3"
    assert checkpoint_to_resume(elsewhere, run_dir) == folder
    assert checkpoint_to_resume(load_config(), None) is None
    assert checkpoint_to_resume(load_config(["trainer.resume_mode=disable"]), run_dir) is None
    named = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}"]
    assert checkpoint_to_resume(load_config(named), run_dir) == folder


def test_logs_are_cut_back_to_the_step_that_is_resumed(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for step in range(4):
        (dumps / f"{step}.jsonl").write_text("{}\n")
    lines = [json.dumps({"step": step, "text": "ü"}) + "\n" for step in (0, 1, 1, 2, 3)]
    (tmp_path / "rollouts.jsonl").write_text("".join(lines) + lines[-1][:7], encoding="utf-8")  # cut short by a kill
    rewind_logs(load_config([f"trainer.rollout_data_dir={dumps}"]), tmp_path, 1)
    assert (tmp_path / "rollouts.jsonl").read_text(encoding="utf-8") == "".join(lines[:3])
    assert names(dumps) == ["0.jsonl", "1.jsonl"]
    assert names(tmp_path) == ["dumps", "rollouts.jsonl"]
