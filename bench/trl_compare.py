"""Samples a second and final accuracy beside TRL's GRPOTrainer, on the single-turn addition task, in one run.

    python bench/trl_compare.py --trl-python /path/to/env-with-trl/bin/python [--steps 60] [--seeds 0 1 2] [--rounds 1]

Same tiny model, tokenizer, rows, batch (16 prompts x 8), lengths, learning rate and schedule, fp32, all cores for
both. The two take turns, so that a busy machine slows both. TRL keeps no old log-probs apart on policy; `bypass` is
our run that does not compute them either (algorithm.rollout_correction.bypass_mode).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from common import print_table, validate

from kitlib.config import load_config
from kitlib.paths import data_path
from kitlib.run.curve import read_metrics
from kitlib.trainer.task_runner import TaskRunner

HERE = Path(__file__).parent
WARM_UP = 5  # steps that trl_run.py leaves out too
DATA = data_path("add").parent


def task(steps: int, seed: int) -> list[str]:
    """Overrides of one run."""
    return [
        f"data.train_files={DATA / 'add/train.parquet'}",
        f"data.val_files={DATA / 'add/val.parquet'}",
        f"actor_rollout_ref.model.path={DATA / 'models/add'}",
        "data.max_response_length=8",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=128",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=128",
        f"trainer.total_training_steps={steps}",
        f"kitlib.seed={seed}",
    ]


def ours(steps: int, seed: int, more: list[str], folder: Path) -> dict[str, float]:
    """One run of kitlib; returns what trl_run.py prints."""
    words = [
        *task(steps, seed),
        *more,
        "trainer.logger=[jsonl]",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
    ]
    TaskRunner().run(load_config(words), run_dir=folder)
    rows = read_metrics(folder / "metrics.jsonl")[WARM_UP + 1 :]
    seconds = sum(row["timing_s/step"] + row.get("timing_s/dump_rollout_generations", 0.0) for row in rows)
    greedy, sampled = (validate(task(steps, seed), folder / "model", sampled=mode) for mode in (False, True))
    return {"samples_per_s": 128 * len(rows) / seconds, "greedy": greedy, "sampled": sampled}


def theirs(python: str, steps: int, seed: int, schedule: str) -> dict[str, float]:
    """One run of TRL in its own environment."""
    command = [python, str(HERE / "trl_run.py"), "--data", str(DATA), "--steps", str(steps), "--seed", str(seed)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*command, "--lr-scheduler", schedule], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trl-python", required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--schedules", nargs="+", default=["constant", "linear"])
    args = parser.parse_args()
    bypass = ["algorithm.rollout_correction.bypass_mode=true"]
    results: dict[str, list[dict[str, float]]] = {}
    for seed in args.seeds:
        for schedule in args.schedules:
            results.setdefault(f"TRL, {schedule}", []).append(theirs(args.trl_python, args.steps, seed, schedule))
        for name, more in (("kitlib sync", []), ("kitlib sync, bypass", bypass)):
            with tempfile.TemporaryDirectory() as folder:
                results.setdefault(name, []).append(ours(args.steps, seed, more, Path(folder) / "run"))
    base = median(run["samples_per_s"] for run in results[f"TRL, {args.schedules[0]}"])
    rows = []
    for name, runs in results.items():
        speed, sampled, greedy = (median(run[what] for run in runs) for what in ("samples_per_s", "sampled", "greedy"))
        rows.append([name, speed, speed / base, sampled, greedy])
    print_table(
        f"add, {args.steps} steps, median of {len(args.seeds)}", ["", "samples/s", "x TRL", "sampled", "greedy"], rows
    )


if __name__ == "__main__":
    main()
