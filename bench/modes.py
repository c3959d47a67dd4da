"""The same work done four ways: V0 and the three modes of V1, beside the bound of what overlapping can give.

    python bench/modes.py [--all | --real] [--steps 10] [--repeats 1] [--only v0 sync] [--trace FOLDER]

Scripted (default): generation and training take times that kitlib/lessons/fit_four_ways injects, with a long tail of
response lengths; --all: in three shares. --real: the shipped task sum_tool on its tiny model, which decides nothing
about larger ones: there Python, which runs one thread at a time, is what generation and training share.

    bound      (t_gen + t_train) / max(t_gen, t_train), with the times of V0: V0 does one after the other, and nobody is
               done before the slower of the two
    speed-up   seconds a step of V0 over those of the mode, from the third step on: before, the window fills

The bound takes the time that V0 generates for the work there is. It is not: while V0 waits for its longest response,
the server is nearly empty. Where generation is the slower side, a mode that fills those gaps with prompts of the next
step may pass the bound. separate_async has a server and a trainer at once, as if each had its devices; colocate_async
and sync take turns on one.

verl's documents report, for 150 steps of one recipe on one cluster: sync 22.8 h, colocate_async 14.7 h,
separate_async 14.1 h.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from common import print_table
from rich.console import Console

from kitlib.inspector.timeline import Timeline
from kitlib.inspector.timeline_view import time_line
from kitlib.inspector.trace_export import save_chrome_trace
from kitlib.lessons.fit_four_ways import ModeRun, Script, run_mode
from kitlib.paths import data_path

FIRST = 3  # the step from which is measured
MODES: dict[str, tuple[str, ...]] = {
    "v0": ("trainer.use_v1=false",),
    "sync": ("trainer.v1.trainer_mode=sync",),
    "colocate_async": ("trainer.v1.trainer_mode=colocate_async",),
    "separate_async": (
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=local",
    ),
}
COMMON = ("trainer.logger=[]", "trainer.test_freq=-1", "trainer.val_before_train=false", "data.max_response_length=256")
REAL = (
    f"data.train_files={data_path('sum_tool/train.parquet')}",
    f"data.val_files={data_path('sum_tool/val.parquet')}",
    f"actor_rollout_ref.model.path={data_path('models/sum_tool')}",
    "data.max_prompt_length=64",
    "data.max_response_length=192",
)
BALANCED = Script()
SHARES = {
    "generation and training take about the same time": BALANCED,
    "training takes twice as long": replace(BALANCED, train_row=2 * BALANCED.train_row),
    "generation takes twice as long": replace(BALANCED, train_row=BALANCED.train_row / 2),
}


def best_of(repeats: int, overrides: Sequence[str], script: Script | None) -> ModeRun:
    """The shortest of several runs: another program on the machine makes a run longer, nothing makes it shorter."""
    return min((run_mode(overrides, script) for _ in range(repeats)), key=lambda run: run[0].seconds)


def compare(
    title: str, common: Sequence[str], names: Sequence[str], steps: int, repeats: int, script: Script | None
) -> list[Timeline]:
    """Run the modes and print their table; returns the measured parts of their time lines."""
    lines, rows = [], []
    for name in names:
        words = (*COMMON, f"trainer.total_training_steps={steps}", *common, *MODES[name])
        whole, staleness = best_of(repeats, words, script)
        line = replace(whole, title=name).steps(FIRST, steps)
        lines.append(line)
        first = lines[0]
        speed_up, bound = first.seconds / line.seconds, (first.t_gen + first.t_train) / first.bound
        rows.append(
            (
                name,
                line.seconds / (steps - FIRST + 1),
                f"{speed_up:.2f}",
                f"{speed_up / bound:.0%}",
                f"{line.idle_share('driver'):.0%}",
                f"{line.idle_share(*line.servers):.0%}",
                f"{mean(staleness.means[FIRST - 1 :]):.2f} / {max(staleness.worst):.0f}",
                f"{staleness.evicted:.0f}",
                f"{whole.seconds:.1f}",
            )
        )
    per_step = [seconds / (steps - FIRST + 1) for seconds in (lines[0].t_gen, lines[0].t_train)]
    print_table(
        f"{title}: in {names[0]} t_gen {per_step[0]:.2f} s and t_train {per_step[1]:.2f} s a step; bound {bound:.2f}",
        [
            "",
            "s a step",
            "speed-up",
            "of bound",
            "trainer idle",
            "rollout idle",
            "staleness mean / worst",
            "evicted",
            "s in all",
        ],
        rows,
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1, help="the shortest run of so many counts")
    parser.add_argument("--only", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--trace", type=Path, help="folder for time lines as pages and traces")
    args, more = parser.parse_known_args()
    shares: dict[str, Script | None] = {"sum_tool": None} if args.real else dict(SHARES)
    for title, script in list(shares.items())[: None if args.all else 1]:
        lines = compare(title, (*(REAL if args.real else ()), *more), args.only, args.steps, args.repeats, script)
        Console(width=120).print(time_line(lines))
        if args.trace is not None:
            folder = args.trace / title.replace(" ", "_")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "modes.html").write_text(f"<meta charset=utf-8>{time_line(lines).html()}", encoding="utf-8")
            for line in lines:
                save_chrome_trace(line, folder / f"{line.title}.json")


if __name__ == "__main__":
    main()
