"""A training run in a process of its own that dies while it saves, as if the machine had lost its power.

    run_until_killed(folder, overrides, step=3)

The process kills itself with SIGKILL, which nothing can catch: after the update of the step, when every file of its
checkpoint is written and none is published. It also ends when its parent is gone: it watches the pipe of its standard
input, which closes with the parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kitlib
from kitlib.lessons.expect import LessonError

if TYPE_CHECKING:
    from kitlib.contract import StageRecord
    from kitlib.trainer.base import PPOTrainer

TOLD = ("update_actor", "save_checkpoint", "update_weights")


def run_until_killed(run_dir: Path, overrides: Sequence[str], step: int, timeout: float = 240.0) -> str:
    """Train in a child process until it kills itself while it saves `step`; returns what it has said until then.

    LessonError if it ends in another way or takes longer than `timeout` seconds. No process is left behind.
    """
    command = [sys.executable, "-m", "kitlib.lessons.survive_restart", str(run_dir), str(step), *overrides]
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT, env=_environment()
        )
        try:
            code: int | None = child.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            child.kill()
            child.communicate()
        said.seek(0)
        text = said.read()
    if code != -signal.SIGKILL:
        end = f"still ran after {timeout:g} s" if code is None else f"ended with code {code}"
        raise LessonError(
            f"the child should have been killed while it saved step {step}, and it {end}:\n{text[-2000:]}"
        )
    return text.rstrip()


def _environment() -> dict[str, str]:
    """This process's, with the folder of the package to import from."""
    folders = [str(Path(kitlib.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def main(arguments: Sequence[str]) -> None:
    """In the child: train to the kill."""
    from kitlib.config import load_config
    from kitlib.trainer import checkpointing
    from kitlib.trainer.observers import Observer
    from kitlib.trainer.task_runner import TaskRunner

    run_dir, step, *overrides = arguments
    publish = checkpointing.publish

    def publish_or_die(draft: Path, manifest: Any) -> Path:
        if manifest.global_steps == int(step):
            print(f"step {step}: all files are written, now comes SIGKILL", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return publish(draft, manifest)

    class Teller(Observer):
        def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
            if record.stage in TOLD and record.seconds is not None and record.global_steps:
                print(f"step {record.global_steps}: {record.stage}", flush=True)

    checkpointing.publish = publish_or_die
    TaskRunner().run(load_config(overrides), run_dir=Path(run_dir), observers=[Teller()])


def end_with_parent() -> None:
    """End this process when the pipe of its standard input is closed."""

    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
