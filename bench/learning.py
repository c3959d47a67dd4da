"""Does it learn? The shipped demo for three seeds: held-out accuracy, greedy and sampled, before and after.

python bench/learning.py [--task mult_tool] [--steps 100] [--seeds 0 1 2] [key=value ...]
"""

from __future__ import annotations

import argparse

from common import print_table, run, validate

from kitlib.paths import data_path

LIMITS = {"mult_tool": (), "sum_tool": ("data.max_prompt_length=64", "data.max_response_length=192"), "add": ()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="mult_tool", choices=LIMITS)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args, more = parser.parse_known_args()
    overrides = [
        f"data.train_files={data_path(f'{args.task}/train.parquet')}",
        f"data.val_files={data_path(f'{args.task}/val.parquet')}",
        f"actor_rollout_ref.model.path={data_path(f'models/{args.task}')}",
        f"trainer.total_training_steps={args.steps}",
        *LIMITS[args.task],
        *more,
    ]
    rows = [["before", validate(overrides), validate(overrides, sampled=True), "", "", ""]]
    for seed in args.seeds:
        done = run([*overrides, f"kitlib.seed={seed}"])
        rewards = [step["critic/score/mean"] for step in done.steps]
        peak = f"{done.peak_bytes / 2**30:.2f} GiB"
        rows.append([f"seed {seed}", done.greedy, done.sampled, rewards[-1], done.seconds, peak])
    print_table(
        f"{args.task}: {args.steps} steps of 16 prompts x 8",
        ["", "greedy", "sampled", "last reward", "seconds", "peak memory"],
        rows,
    )


if __name__ == "__main__":
    main()
