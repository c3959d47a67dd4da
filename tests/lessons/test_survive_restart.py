"""Lesson 12: the child dies at the right moment and never stays behind; the checks name each wrong answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kitlib.config import load_config
from kitlib.dataset import create_dataloaders
from kitlib.lessons.answers import Answer
from kitlib.lessons.expect import LessonError
from kitlib.lessons.survive_restart import (
    check_first_step,
    check_never_trained,
    check_reissue,
    mix_checkpoint,
    run_until_killed,
    trained_questions,
)
from kitlib.lessons.survive_restart.stale import FILES
from kitlib.models import load_tokenizer
from kitlib.trainer.checkpoint import Manifest, find_latest
from kitlib.transfer_queue import TransferQueue, acting_as, watch

SMALL = [
    "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "data.train_max_samples=8",
    "trainer.total_training_steps=4",
    "trainer.save_freq=1",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.logger=[]",
]


def said(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


@pytest.mark.slow
class TestChild:
    def test_it_dies_with_its_checkpoint_written_and_not_published(self, tmp_path: Path) -> None:
        text = run_until_killed(tmp_path, SMALL, step=2)
        assert text.splitlines() == [
            "step 1: update_actor",
            "step 1: save_checkpoint",
            "step 1: update_weights",
            "step 2: update_actor",
            "step 2: all files are written, now comes SIGKILL",
        ]
        root = tmp_path / "checkpoints"
        latest = find_latest(root)
        assert latest == root / "global_step_1"
        files = {str(path.relative_to(latest)) for path in latest.rglob("*") if path.is_file()} - {"checkpoint.json"}
        draft = root / ".global_step_2.draft"
        assert {str(path.relative_to(draft)) for path in draft.rglob("*") if path.is_file()} == files
        assert not (root / "global_step_2").exists()
        assert list(trained_questions(tmp_path)) == [1]

    def test_a_child_that_takes_too_long_is_ended(self, tmp_path: Path) -> None:
        with pytest.raises(LessonError, match=r"while it saved step 2, and it still ran after 0.01 s"):
            run_until_killed(tmp_path, SMALL, step=2, timeout=0.01)
        assert not _children()

    def test_a_child_that_ends_in_another_way_is_told_with_its_words(self, tmp_path: Path) -> None:
        with pytest.raises(LessonError, match=r"(?s)ended with code 1:.*no_such_key"):
            run_until_killed(tmp_path, [*SMALL, "trainer.no_such_key=1"], step=2)

    def test_it_ends_when_its_parent_is_gone(self) -> None:
        code = "from kitlib.lessons.survive_restart.child import end_with_parent; end_with_parent()\n"
        code += "import time; print('ready', flush=True); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            assert child.stdin is not None
            assert child.stdout.readline() == b"ready\n"
            child.stdin.close()
            assert child.wait(120) == 1
        finally:
            child.kill()


def _children() -> list[str]:
    """Command lines of the children of this process that are this lesson's."""
    tasks = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in tasks]
    return [line for line in lines if "survive_restart" in line]


class TestFirstStep:
    trainer: Any = SimpleNamespace(resumed_from=Path("checkpoints/global_step_2"))

    def test_right_and_open(self) -> None:
        assert check_first_step(3, self.trainer).ok is True
        assert check_first_step(..., self.trainer).ok is None

    def test_wrong(self) -> None:
        assert "step 3 was not finished, so its update is lost" in said(check_first_step(4, self.trainer))
        assert "the update of step 2 is in the weights" in said(check_first_step(2, self.trainer))
        assert "that would be a new start" in said(check_first_step(1, self.trainer))
        assert "the answer is a number" in said(check_first_step("3", self.trainer))


class TestNeverTrained:
    @pytest.fixture
    def loader(self) -> Any:
        config = load_config(SMALL)
        return create_dataloaders(config, load_tokenizer(config.actor_rollout_ref.model.path))[0]

    def test_right_and_open(self, loader: Any) -> None:
        assert check_never_trained(4, [{"index": [2 * i, 2 * i + 1]} for i in range(4)], 2).ok is True
        assert check_never_trained(2, loader, 3).ok is True
        assert check_never_trained(..., loader, 3).ok is None

    def test_wrong(self, loader: Any) -> None:
        assert "that is so with the saved place" in said(check_never_trained(0, loader, 3))
        assert "the number of rows that are trained" in said(check_never_trained(6, loader, 3))
        assert "the number of steps" in said(check_never_trained(1, loader, 3))
        assert "the first steps did train some rows" in said(check_never_trained(8, loader, 3))
        assert "too large" in said(check_never_trained(7, loader, 3))


PROMPTS = {"sampled": "c", "finished": "a", "failed": "e", "running": "b", "pending": "d"}


class TestReissue:
    @pytest.fixture
    def log(self) -> Any:
        """What a resumed run has done: cleared rows of b and c, submitted b and d again."""
        tq = watch(TransferQueue())
        for key in ("b_0_0", "c_0_0", "c_1_0"):
            tq.kv_put(key, "train", {"responses": torch.arange(2)})
        tq.kv_clear(["b_0_0", "c_0_0", "c_1_0"], "train")
        with acting_as(stage="submit_batch_to_rollout"):
            tq.kv_batch_put(["b", "d"], "train", tags=[{"status": "pending"}] * 2)
        return tq.log

    def test_right_and_open(self, log: Any) -> None:
        right = ({"running", "pending"}, {"running", "sampled"})
        assert check_reissue(*right, PROMPTS, log).ok is True
        assert check_reissue(..., right[1], PROMPTS, log).ok is None
        assert check_reissue(right[0], ..., PROMPTS, log).ok is None

    def test_wrong(self, log: Any) -> None:
        def words(again: Any, cleared: Any) -> str:
            return said(check_reissue(again, cleared, PROMPTS, log))

        again, cleared = {"running", "pending"}, {"running", "sampled"}
        assert "submitted again: finished: it has settled and all its rows" in words(again | {"finished"}, cleared)
        assert "submitted again: failed: a failure has settled, too" in words(again | {"failed"}, cleared)
        assert "submitted again: sampled: it has no marker any more" in words(again | {"sampled"}, cleared)
        assert "submitted again: 1 name still missing" in words({"running"}, cleared)
        assert "cleared: finished: its rows are good" in words(again, cleared | {"finished"})
        assert "cleared: failed: it has settled" in words(again, cleared | {"failed"})
        assert "cleared: pending: it had no row to clear" in words(again, cleared | {"pending"})
        assert "cleared: 1 name still missing" in words(again, {"running"})
        assert "is a set of names" in words("running", cleared)


class TestStaleFile:
    def folders(self, root: Path) -> tuple[Path, Path]:
        for step in (3, 4):
            folder = root / f"global_step_{step}"
            for name in (*FILES, "actor/model.safetensors"):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(f"{name} of {step}")
            Manifest(step, "sync", num_prompts=8).write(folder)
        return root / "global_step_4", root / "global_step_3"

    def test_one_file_is_from_before_and_the_sizes_are_right(self, tmp_path: Path) -> None:
        folder, before = self.folders(tmp_path)
        hit = set()
        for seed in range(12):
            fault = mix_checkpoint(folder, before, seed)
            assert Manifest.read(folder).global_steps == 4
            stale = [name for name in FILES if (folder / name).read_text() != f"{name} of 4"]
            assert stale == [fault.name]
            assert fault.check(fault.name).ok is True
            for said_so in (Path(fault.name).name, f" {fault.name}", folder / fault.name, [fault.name]):
                assert fault.check(said_so).ok is True
            hit.add(fault.name)
            fault.mend()
            assert (folder / fault.name).read_text() == f"{fault.name} of 4"
        assert hit == set(FILES)

    def test_wrong(self, tmp_path: Path) -> None:
        fault = mix_checkpoint(*self.folders(tmp_path))
        healthy = next(name for name in FILES if name != fault.name)
        assert f"{healthy} is of the right step" in said(fault.check(healthy))
        assert "actor/model.safetensors was not touched" in said(fault.check("model.safetensors"))
        assert "there is no file 'weights.pt' here" in said(fault.check("weights.pt"))
        assert fault.check(...).ok is None
        assert fault.name not in repr(fault)
        assert fault.name in fault.reveal()


def test_trained_questions(tmp_path: Path) -> None:
    rows = [(2, "34*98=?"), (1, "12*59=?"), (1, "12*59=?"), (1, "11*11=?")]
    lines = [json.dumps({"step": step, "input": f"user\n{text}\nassistant\n"}) for step, text in rows]
    (tmp_path / "rollouts.jsonl").write_text("\n".join(lines))
    assert trained_questions(tmp_path) == {1: ["11*11=?", "12*59=?"], 2: ["34*98=?"]}
