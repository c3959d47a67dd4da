"""A run in a process of its own that kills itself at a chosen moment, and writes down which prompts it has trained on.

The log tells the history of the weights: after a resume, what was trained after the step that was saved is void.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What a run imports late is imported here, so that the process which all attempts are forked from has it.
import pyarrow.dataset
import pyarrow.parquet  # noqa: F401
import torchdata.stateful_dataloader.sampler  # noqa: F401
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM  # noqa: F401

import kitlib.rollout.transformers_server  # noqa: F401
from kitlib.config import Config, load_config
from kitlib.contract import StageRecord
from kitlib.keys import uid_of
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.observers import Observer
from kitlib.trainer.task_runner import TaskRunner

NUM_PROMPTS, BATCH_SIZE, NUM_STEPS = 16, 4, 8  # two passes over the data
LOG = "trained.jsonl"


def tiny_config(mode: str, **overrides: Any) -> Config:
    """4 prompts x 2 sessions a step, every step saved."""
    mini = {"separate_async": 2}.get(mode, BATCH_SIZE)
    settings = {
        "data.train_batch_size": BATCH_SIZE,
        "data.train_max_samples": NUM_PROMPTS,
        "data.val_max_samples": 4,
        "actor_rollout_ref.actor.ppo_mini_batch_size": mini,
        "actor_rollout_ref.rollout.n": 2,
        "trainer.total_training_steps": NUM_STEPS,
        "trainer.save_freq": 1,
        "trainer.max_actor_ckpt_to_keep": 2,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.logger": ["jsonl"],
        "trainer.v1.trainer_mode": mode,
        "trainer.v1.separate_async.parameter_sync_step": BATCH_SIZE // mini,
    }
    if mode != "sync":
        settings["data.gen_batch_size"] = 1
    return load_config({**settings, **{name.replace("__", "."): value for name, value in overrides.items()}})


def log(folder: Path, event: dict[str, Any]) -> None:
    """One write, on a line of its own even if the line before was cut short."""
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(event))


class Bookkeeper(Observer):
    """Logs the resumed step, every prompt that an update was made from, and every prompt that was evicted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logged: set[str] = set()

    def on_fit_begin(self, trainer: PPOTrainer) -> None:
        log(self.folder, {"event": "begin", "step": trainer.global_steps})
        buffer = trainer.replay_buffer
        clear = buffer._clear

        def clear_and_log(view: Any, uids: set[str]) -> None:
            if uids:
                self.log(trainer, "evicted", sorted(uids))
            clear(view, uids)

        buffer._clear = clear_and_log  # type: ignore[method-assign]

    def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
        if record.stage == "update_actor" and record.seconds is not None and record.error is None:
            tags = trainer.tq.kv_list("train")["train"]
            fresh = {uid_of(key) for key in tags} - {key for key in tags if tags[key].get("is_prompt")} - self.logged
            uids = sorted(
                uid for uid in fresh if not uid.startswith("pad")
            )  # their markers went when they were sampled
            self.log(trainer, "trained", uids)
            self.logged |= set(uids)

    def log(self, trainer: PPOTrainer, event: str, uids: list[str]) -> None:
        tags = trainer.tq.kv_list("train")["train"]
        keys = [next(key for key in tags if uid_of(key) == uid) for uid in uids]
        indexes = trainer.tq.kv_batch_get(keys, "train", ["index"]).get("index").tolist()
        for uid, index in zip(uids, indexes, strict=True):
            log(self.folder, {"event": event, "step": trainer.global_steps, "uid": uid, "index": index})


class Killer(Observer):
    """SIGKILL `delay` seconds after the n-th begin or end of a stage, and ten of them later if the timer is late."""

    def __init__(self, num_events: int, delay: float) -> None:
        self.num_events = num_events
        self.delay = delay

    def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
        self.num_events -= 1
        if self.num_events == 0:
            timer = threading.Timer(self.delay, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        if self.num_events == -10:  # how far a run gets depends on the machine, and not without limit
            os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path, config: Config, kill_at: tuple[int, float] | None) -> None:
    """Go on with the run in `folder` to its end, or to the kill."""
    killer = [Killer(*kill_at)] if kill_at is not None else []
    TaskRunner().run(config, run_dir=folder, observers=[Bookkeeper(folder), *killer])


@dataclass
class History:
    """What became of prompts, as the final weights have seen it: uid -> index in the dataset."""

    resumed: list[int] = field(default_factory=list)
    trained: list[tuple[int, str, int]] = field(default_factory=list)  # step, uid, index
    evicted: list[tuple[int, str, int]] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> History:
        history = cls()
        for line in (folder / LOG).read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # cut short
            if entry["event"] == "begin":
                history.resumed.append(entry["step"])
                history.trained = [one for one in history.trained if one[0] <= entry["step"]]
                history.evicted = [one for one in history.evicted if one[0] <= entry["step"]]
            else:
                getattr(history, entry["event"]).append((entry["step"], entry["uid"], entry["index"]))
        return history
