"""Does it learn, and in every mode as well? The shipped demo for three seeds: held-out accuracy, greedy and sampled.

python bench/learning.py [key=value ...] [--task mult_tool] [--steps 100] [--seeds 0 1 2] [--modes sync ..]

One step of every mode trains the same number of groups; separate_async syncs the weights after every update.
"""

from __future__ import annotations

import argparse
from statistics import mean

from common import Run, print_table, run, validate

from kitlib.paths import data_path

LIMITS = {"mult_tool": (), "sum_tool": ("data.max_prompt_length=64", "data.max_response_length=192"), "add": ()}
MODES: dict[str, tuple[str, ...]] = {
    "v0": ("trainer.use_v1=false",),
    "sync": (),
    "colocate_async": ("trainer.v1.trainer_mode=colocate_async",),
    "separate_async": (
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="mult_tool", choices=LIMITS)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--modes", nargs="+", default=["sync"], choices=MODES)
    args, more = parser.parse_known_args()
    overrides = [
        f"data.train_files={data_path(f'{args.task}/train.parquet')}",
        f"data.val_files={data_path(f'{args.task}/val.parquet')}",
        f"actor_rollout_ref.model.path={data_path(f'models/{args.task}')}",
        f"trainer.total_training_steps={args.steps}",
        *LIMITS[args.task],
        *more,
    ]
    rows: list[list[object]] = [
        ["before", "", validate(overrides), validate(overrides, sampled=True), "", "", ""],
    ]
    for mode in args.modes:
        runs = []
        for seed in args.seeds:
            runs.append(run([*overrides, *MODES[mode], f"kitlib.seed={seed}"]))
            rows.append([mode, f"seed {seed}", *facts(runs[-1])])
        rows.append([mode, "mean", *(mean(column) for column in zip(*map(accuracies, runs), strict=True)), "", "", ""])
    print_table(
        f"{args.task}: {args.steps} steps of 16 prompts x 8",
        ["mode", "", "greedy", "sampled", "last reward", "seconds", "peak memory"],
        rows,
    )


def accuracies(done: Run) -> tuple[float, float]:
    return done.greedy, done.sampled


def facts(done: Run) -> list[object]:
    peak = f"{done.peak_bytes / 2**30:.2f} GiB"
    return [*accuracies(done), done.steps[-1]["critic/score/mean"], done.seconds, peak]


if __name__ == "__main__":
    main()
