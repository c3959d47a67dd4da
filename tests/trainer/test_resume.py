"""A run that was stopped goes on as if it had not been: the same numbers, no prompt lost, none trained twice."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tensordict import TensorDict

from kitlib.config import Config
from kitlib.errors import KitError
from kitlib.run.curve import read_metrics
from kitlib.run.training import train
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.checkpoint import find_latest
from kitlib.trainer.checkpointing import Checkpointing
from kitlib.trainer.feeding import prompts_to_tensordict
from kitlib.trainer.task_runner import TaskRunner
from kitlib.transfer_queue import TransferQueue
from kitlib.workers.errors import CheckpointError
from tests.trainer import killed_run
from tests.trainer.killed_run import BATCH_SIZE, NUM_PROMPTS, NUM_STEPS, History, tiny_config

MODES = ("sync", "colocate_async", "separate_async")


def run(folder: Path, config: Config, check: Callable[[PPOTrainer], None] = lambda trainer: None) -> dict[str, Any]:
    """Run in `folder` to the end of the config, or from its checkpoint on; returns the final weights."""
    runner = TaskRunner()
    try:
        trainer = runner.start(config, run_dir=folder)
        check(trainer)
        trainer.fit()
        return trainer.actor_rollout_wg.state_dict_for_rollout()
    finally:
        runner.close()


def numbers(folder: Path) -> list[dict[str, float]]:
    """metrics.jsonl without what depends on the clock."""
    return [
        {name: value for name, value in row.items() if not name.startswith(("timing", "perf"))}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def rollouts(folder: Path) -> list[tuple[Any, ...]]:
    rows = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text(encoding="utf-8").splitlines()]
    return sorted((row["step"], row["input"], row["output"], row["score"]) for row in rows)


def test_a_resumed_sync_run_makes_the_numbers_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    """Weights, moments, schedule, data order over the end of an epoch, and the draws of the servers go on."""
    schedule = {"actor_rollout_ref__actor__optim__lr_warmup_steps": 8}
    whole = run(tmp_path / "whole", tiny_config("sync", trainer__total_training_steps=6, **schedule))
    for last_step in (3, 4, 6):  # 4 steps are an epoch
        pieces = run(tmp_path / "pieces", tiny_config("sync", trainer__total_training_steps=last_step, **schedule))
    assert numbers(tmp_path / "pieces") == numbers(tmp_path / "whole")
    assert rollouts(tmp_path / "pieces") == rollouts(tmp_path / "whole")
    assert all(torch.equal(pieces[name], whole[name]) for name in whole)


@pytest.mark.parametrize("mode", MODES)
def test_a_finished_run_is_gone_on_with_when_it_gets_more_steps(tmp_path: Path, mode: str) -> None:
    run(tmp_path, tiny_config(mode, trainer__total_training_steps=1))
    before = rollouts(tmp_path)

    def nothing_to_do(trainer: PPOTrainer) -> None:
        assert trainer.global_steps == 1
        assert trainer.resumed_from == tmp_path / "checkpoints" / "global_step_1"

    run(tmp_path, tiny_config(mode, trainer__total_training_steps=1), nothing_to_do)
    assert rollouts(tmp_path) == before
    run(tmp_path, tiny_config(mode, trainer__total_training_steps=2), nothing_to_do)
    assert [row["step"] for row in numbers(tmp_path)] == [1, 2]


def test_an_adaptive_kl_coefficient_goes_on(tmp_path: Path) -> None:
    kl_ctrl = {"type": "adaptive", "target_kl": 1e-9, "horizon": 10}
    adaptive = {"algorithm__use_kl_in_reward": True, **{f"algorithm__kl_ctrl__{k}": v for k, v in kl_ctrl.items()}}
    values = []
    for last_step in (1, 2):
        config = tiny_config("sync", trainer__total_training_steps=last_step, **adaptive)
        run(tmp_path, config, lambda trainer: values.append(trainer.kl_ctrl_in_reward.value))
    assert values[0] == config.algorithm.kl_ctrl.kl_coef
    assert values[1] != values[0]


def test_the_threshold_of_lent_devices_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kitlib.trainer.separate_async.IDLE_SECONDS", float("inf"))  # every step is a calm one
    lending = {"enable_switch": True, "switch_threshold_release_steps": 1, "switch_threshold_ratio": 1.0}
    hybrid = {f"trainer__v1__separate_async__hybrid_rollout__{key}": value for key, value in lending.items()}
    states = []
    for last_step in (2, 3):
        config = tiny_config("separate_async", trainer__total_training_steps=last_step, **hybrid)
        run(tmp_path, config, lambda trainer: states.append(trainer.mode_state()))
    assert states[0] == {"ratio": 1.0, "idle_steps": 0, "calm_steps": 0}
    assert states[1]["calm_steps"] == 1
    assert states[1]["ratio"] < 1.0


# What becomes of the queue


class Recorder:
    """Stands in for the agent loop."""

    def __init__(self) -> None:
        self.batches: list[TensorDict] = []

    def generate_sequences(self, batch: TensorDict) -> None:
        self.batches.append(batch)


def bare(tq: TransferQueue) -> Checkpointing:
    """A trainer of step 7 with a queue and nothing else."""
    trainer = Checkpointing()
    trainer.tq, trainer.trainer_mode, trainer.global_steps = tq, "colocate_async", 7
    trainer.strict, trainer.timing_raw = False, {}
    trainer.agent_loop_manager = Recorder()  # type: ignore[assignment]
    return trainer


def submitted(tq: TransferQueue, num_prompts: int) -> list[str]:
    """Prompts of step 5, as the async modes register them."""
    trainer = bare(tq)
    trainer.global_steps = 5
    rows = {
        "raw_prompt": [[{"role": "user", "content": f"{i}*{i}=?"}] for i in range(num_prompts)],
        "index": list(range(num_prompts)),
        "dummy_tensor": torch.zeros(num_prompts, 1, dtype=torch.uint8),
    }
    return trainer.register_prompts(prompts_to_tensordict(rows), "train", with_rows=True)


def row_of(tq: TransferQueue, key: str) -> str:
    tq.kv_put(key, "train", {"responses": torch.arange(3)}, tag={"status": "success"})
    return key


def test_prompts_in_flight_are_submitted_again_and_stale_rows_cleared() -> None:
    tq = TransferQueue()
    pending, running, finished, failed, sampled = submitted(tq, 5)
    tq.kv_put(running, "train", tag={"status": "running", "num_sessions": 2})
    tq.kv_put(finished, "train", tag={"status": "finished"})
    tq.kv_put(failed, "train", tag={"status": "failure"})
    kept = [row_of(tq, f"{finished}_0_0"), row_of(tq, f"{finished}_1_0"), row_of(tq, f"{failed}_1_0")]
    for stale in (f"{running}_1_0", f"{sampled}_0_0", f"{sampled}_1_0", "pad0a_0_0"):
        row_of(tq, stale)
    tq.kv_clear(sampled, "train")

    trainer = bare(tq)
    assert trainer.reissue_inflight_prompts() == 2
    tags = tq.kv_list("train")["train"]
    assert set(tags) == {pending, running, finished, failed, *kept}
    assert all(
        tags[uid] | {"is_prompt": True, "status": "pending", "global_steps": 7} == tags[uid]
        for uid in (pending, running)
    )
    assert tags[finished] == {"is_prompt": True, "status": "finished", "global_steps": 5}
    (batch,) = trainer.agent_loop_manager.batches  # type: ignore[attr-defined]
    assert batch.get("uid").tolist() == [pending, running]
    assert batch.get("index").tolist() == [0, 1]
    assert batch.get("raw_prompt").tolist()[1] == [{"role": "user", "content": "1*1=?"}]
    assert batch.get("global_steps").data == 7
    assert [row.tolist() for row in batch["dummy_tensor"].unbind()] == [[0], [0]]
    assert [len(chunk) for chunk in batch.chunk(2)] == [1, 1]  # as two agent loop workers would get it


def test_a_queue_without_prompts_in_flight_submits_nothing() -> None:
    tq = TransferQueue()
    row_of(tq, "u_0_0")
    trainer = bare(tq)
    assert trainer.reissue_inflight_prompts() == 0
    assert trainer.agent_loop_manager.batches == []  # type: ignore[attr-defined]
    assert tq.kv_list("train") == {"train": {}}


def test_a_marker_without_its_dataset_row_is_named() -> None:
    tq = TransferQueue()
    submitted(tq, 2)
    tq.kv_put("bare", "train", tag={"is_prompt": True, "status": "running", "global_steps": 5})
    with pytest.raises(CheckpointError, match=r"(?s)without their dataset row.*raw_prompt: 1 of 3 rows lack it: bare"):
        bare(tq).reissue_inflight_prompts()


@pytest.mark.parametrize(("restored", "added"), [(0, 6), (4, 2), (6, 0), (9, 0)])
def test_the_warm_up_counts_what_was_restored(restored: int, added: int) -> None:
    trainer, asked = bare(TransferQueue()), []
    trainer.config = tiny_config("colocate_async")
    trainer.num_restored_prompts = restored
    trainer.add_prompts_to_generate = asked.append  # type: ignore[method-assign, assignment]
    trainer.add_warmup_batches(1.5)
    assert sum(asked) == added


# Checkpoints that do not fit


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    run(tmp_path, tiny_config("colocate_async", trainer__total_training_steps=1))
    folder = find_latest(tmp_path / "checkpoints")
    assert folder is not None
    with pytest.raises(CheckpointError, match=r"prompts in flight of trainer.v1.trainer_mode=colocate_async"):
        run(tmp_path, tiny_config("sync"))
    with pytest.raises(CheckpointError, match=r"made with 16 training prompts, and there are 12: .*data.train_files"):
        run(tmp_path, tiny_config("colocate_async", data__train_max_samples=12))
    (state,) = (folder / "transfer_queue").glob("state-*.pt")
    content = state.read_bytes()
    state.write_bytes(content[:-1] + b"!")
    with pytest.raises(CheckpointError, match=r"state-.* is truncated or damaged"):
        run(tmp_path, tiny_config("colocate_async"))
    (folder / "data.pt").write_bytes(b"x" * (folder / "data.pt").stat().st_size)
    with pytest.raises(CheckpointError, match=r"data.pt is damaged, or holds more than data"):
        run(tmp_path, tiny_config("colocate_async"))


def test_another_async_mode_takes_the_checkpoint_over(tmp_path: Path) -> None:
    run(tmp_path, tiny_config("sync", trainer__total_training_steps=1))
    run(tmp_path, tiny_config("colocate_async", trainer__total_training_steps=2))
    run(tmp_path, tiny_config("separate_async", trainer__total_training_steps=3))
    assert [row["step"] for row in numbers(tmp_path)] == [1, 2, 3]


# The command


def test_kitlib_run_goes_on_in_its_folder_and_overwrites_no_other_run(tmp_path: Path) -> None:
    console = Console(file=(tmp_path / "out.txt").open("w"), width=200)
    folder = tmp_path / "run"

    def config(**overrides: Any) -> Config:
        return tiny_config("sync", kitlib__run_dir=str(folder), **overrides)

    train(config(trainer__total_training_steps=1), console)
    train(config(trainer__total_training_steps=2), console)
    assert f"going on from {folder}/checkpoints/global_step_1" in (tmp_path / "out.txt").read_text()
    assert [row["step"] for row in numbers(folder)] == [1, 2]
    for refused in ({"resume_mode": "disable"}, {"default_local_dir": str(tmp_path / "elsewhere")}):
        with pytest.raises(KitError, match="already holds a run .* that cannot be gone on with"):
            train(config(**{f"trainer__{name}": value for name, value in refused.items()}), console)
    path = {"resume_mode": "resume_path", "resume_from_path": str(folder / "checkpoints" / "global_step_1")}
    train(config(trainer__total_training_steps=2, **{f"trainer__{k}": v for k, v in path.items()}), console)
    assert [row["step"] for row in numbers(folder)] == [1, 2]
    for leftover in (folder / "checkpoints").iterdir():  # as if it had been killed before the first checkpoint
        leftover.rename(tmp_path / leftover.name)
    train(config(trainer__total_training_steps=1), console)
    assert [row["step"] for row in numbers(folder)] == [1]


# Killed


def run_to_the_end(folder: Path, config: Config, num_kills: int) -> History:
    """Start the run again and again, killed at random moments, and let the last attempt get through."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainer.killed_run"])
    dice = random.Random(0)
    for attempt in range(num_kills + 1):
        # Up to two steps, to reach checkpoints; the delay carries the kill into whatever runs then.
        kill_at = (dice.randint(1, 40), dice.uniform(0, 0.1)) if attempt < num_kills else None
        process = context.Process(target=killed_run.run, args=(folder, config, kill_at))
        process.start()
        try:
            process.join()
        finally:  # a run that hangs ends with the time of the test
            process.kill()
        assert process.exitcode in (0, -signal.SIGKILL if kill_at is not None else 0)
    return History.read(folder)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("mode", "num_kills", "overrides"),
    [
        ("sync", 5, {}),
        ("colocate_async", 10, {}),
        ("separate_async", 5, {}),
        ("colocate_async", 4, {"trainer__v1__sampler__max_off_policy_threshold": 1}),
    ],
    ids=["sync", "colocate_async", "separate_async", "colocate_async with evictions"],
)
def test_killed_at_random_moments_no_prompt_is_lost_and_none_is_trained_twice(
    tmp_path: Path, mode: str, num_kills: int, overrides: dict[str, Any]
) -> None:
    history = run_to_the_end(tmp_path, tiny_config(mode, **overrides), num_kills)
    assert history.resumed[0] == 0
    assert any(0 < step < NUM_STEPS for step in history.resumed)
    assert [step for step, *_ in history.trained] == [1 + i // BATCH_SIZE for i in range(NUM_STEPS * BATCH_SIZE)]
    assert bool(history.evicted) == bool(overrides)

    waiting = []
    if mode != "sync":
        tq = TransferQueue()
        latest = find_latest(tmp_path / "checkpoints")
        assert latest is not None
        tq.load_checkpoint(latest / "transfer_queue")
        tags = tq.kv_list("train")["train"]
        markers = [key for key, tag in tags.items() if tag.get("is_prompt")]
        waiting = list(zip(markers, tq.kv_batch_get(markers, "train", ["index"]).get("index").tolist(), strict=True))
        assert len(waiting) == BATCH_SIZE  # the window of one batch has not grown
        rows_of = {key.split("_")[0] for key in tags} - set(markers)
        assert rows_of == {uid for step, uid, _ in history.trained if step == NUM_STEPS}  # nothing has leaked

    prompts = [(uid, index) for _, uid, index in history.trained + history.evicted] + waiting
    assert len({uid for uid, _ in prompts}) == len(prompts)  # no prompt was trained, evicted or kept twice
    num_epochs, rest = divmod(len(prompts), NUM_PROMPTS)
    times = Counter(index for _, index in prompts)
    assert len(times) == NUM_PROMPTS
    assert Counter(times.values()) == Counter(
        {num_epochs: NUM_PROMPTS - rest, num_epochs + 1: rest} if rest else {num_epochs: NUM_PROMPTS}
    )
    if mode == "sync":
        for epoch in range(num_epochs):
            indexes = [index for _, _, index in history.trained[epoch * NUM_PROMPTS : (epoch + 1) * NUM_PROMPTS]]
            assert len(set(indexes)) == NUM_PROMPTS
    steps = [row["step"] for row in numbers(tmp_path)]
    assert steps == sorted(set(steps))
