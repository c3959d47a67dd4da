"""The doctor measured: every case file against every kind (the confusion table), the time for 100,000 keys, and what
its looks at the borders of stages cost in a run.

    python bench/doctor.py [FOLDER]     a folder of case files; by default tests/inspector/doctor/cases, those that
                                        were reported in public; beside it are more_cases, made up for other kinds

A line is an expected kind, a column what was found above info; `.` is nothing. Numbers on the diagonal are right.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from kitlib.config import load_config
from kitlib.contract import StageRecord
from kitlib.inspector.doctor.case_file import read_case, situation_of
from kitlib.inspector.doctor.choices import Choices
from kitlib.inspector.doctor.examine import examine
from kitlib.inspector.doctor.rules import RULES
from kitlib.inspector.doctor.situation import Situation
from kitlib.trainer import base
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.border_doctor import BorderDoctor
from kitlib.trainer.observers import Observer
from kitlib.trainer.task_runner import TaskRunner
from kitlib.transfer_queue import TransferQueue, take_snapshot

CASES = Path(__file__).parent.parent / "tests" / "inspector" / "doctor" / "cases"
SILENT = "(silent)"


def main() -> None:
    """Print both tables."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else CASES
    confusion_table(sorted(folder.glob("*.json")))
    timing(num_prompts=10_000, n=9)
    borders(num_steps=20)


def confusion_table(paths: list[Path]) -> None:
    """One line an expected kind: how many cases, found exactly, found otherwise, and what else was said."""
    lines: dict[str, Counter[str]] = {}
    for path in paths:
        raw = read_case(path)
        expect = raw["expect"]
        line = lines.setdefault(expect["finding"] or SILENT, Counter())
        line["cases"] += 1
        found = examine(situation_of(raw)).findings
        right = [one for one in found if one.kind == expect["finding"]]
        exact = [
            one for one in right if set(one.keys) == set(expect["keys"]) and set(one.fields) == set(expect["fields"])
        ]
        line["exact" if exact else "kind only" if right else "missed"] += bool(expect["finding"])
        allowed = {expect["finding"], *(expect.get("also") or ()), *(one["finding"] for one in expect.get("and") or ())}
        for one in found:
            if one.severity != "info" and one.kind != expect["finding"]:
                line[f"also {one.kind}" if one.kind in allowed else f"FALSE {one.kind}"] += 1
    print(f"{'expected':26s} {'cases':>5s} {'exact':>5s} {'kind':>5s} {'miss':>5s}  also found")
    for kind, line in sorted(lines.items()):
        others = ", ".join(f"{name.removeprefix('also ')} {n}" for name, n in sorted(line.items()) if " " in name)
        counts = (line["cases"], line["exact"], line["kind only"], line["missed"])
        print(f"{kind:26s} {counts[0]:5d} {counts[1] or '.':>5} {counts[2] or '.':>5} {counts[3] or '.':>5}  {others}")
    total = sum(lines.values(), Counter())
    false = sum(n for name, n in total.items() if name.startswith("FALSE"))
    print(
        f"{len(paths)} cases: {total['exact']} exact, {total['kind only']} by kind only, {total['missed']} missed, ",
        end="",
    )
    print(f"{lines.get(SILENT, Counter())['cases']} to be silent, {false} false alarms")


def timing(num_prompts: int, n: int) -> None:
    """All rules over a snapshot of num_prompts * (1 + n) keys with eight fields a row."""
    snapshot = take_snapshot(many_keys(num_prompts, n))
    num_keys = sum(len(part.keys) for part in snapshot.partitions.values())
    config = {"data.train_batch_size": num_prompts, "actor_rollout_ref.rollout.n": n, "algorithm.adv_estimator": "grpo"}
    for stage in ("sample", "compute_advantage"):
        began = time.process_time()
        found = examine(Situation(snapshot, stage=stage, choices=Choices(config), global_steps=2))
        seconds = time.process_time() - began
        print(
            f"{num_keys:,} keys before {stage}: {len(RULES)} rules in {seconds:.2f} s of one CPU, "
            f"{len(found.findings)} findings"
        )


def many_keys(num_prompts: int, n: int) -> TransferQueue:
    """Finished prompts with n rows each; every row has eight fields of one length out of ten."""
    import torch
    from tensordict import TensorDict

    tq = TransferQueue(total_storage_size=num_prompts * (n + 1))
    uids = [f"{number:08x}" for number in range(num_prompts)]
    marker = {"is_prompt": True, "status": "finished", "global_steps": 2}
    tq.kv_batch_put(keys=uids, partition_id="train", tags=[dict(marker) for _ in uids])
    for first in range(0, num_prompts, 1000):
        keys = [f"{uid}_{session}_0" for uid in uids[first : first + 1000] for session in range(n)]
        length = 4 + first // 1000 % 10
        token = torch.ones(len(keys), length, dtype=torch.int64)
        fields = dict.fromkeys(("prompts", "responses", "response_mask", "loss_mask"), token)
        fields |= {name: token.float() for name in ("rm_scores", "rollout_log_probs", "old_log_probs")}
        fields["input_ids"] = torch.ones(len(keys), 2 * length, dtype=torch.int64)
        tag = {"status": "success", "prompt_len": length, "response_len": length, "seq_len": 2 * length}
        tag |= {"global_steps": 2, "min_global_steps": 1, "max_global_steps": 1}
        columns = TensorDict(fields, batch_size=[len(keys)])
        tq.kv_batch_put(keys=keys, partition_id="train", fields=columns, tags=[dict(tag) for _ in keys])
    return tq


class Timed(BorderDoctor):
    """Counts the CPU seconds of its own looks."""

    seconds = 0.0

    def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
        began = time.thread_time()
        super().on_stage(trainer, record)
        Timed.seconds += time.thread_time() - began


class Clock(Observer):
    """CPU seconds of the whole process at the begin of each step, and those of the looks."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def on_step_begin(self, trainer: PPOTrainer) -> None:
        self.marks.append((time.process_time(), Timed.seconds))


def borders(num_steps: int) -> None:
    """What a strict run of the shipped task spends on looks, per step after the first."""
    base.BorderDoctor = Timed
    clock = Clock()
    config = {"trainer.total_training_steps": num_steps, "trainer.val_before_train": False, "trainer.test_freq": -1}
    TaskRunner().run(load_config(config | {"trainer.logger": []}), observers=[clock])
    (began, before), (ended, after) = clock.marks[1], clock.marks[-1]
    step, looks = (ended - began) / (num_steps - 2), (after - before) / (num_steps - 2)
    print(f"looks at stage borders: {looks * 1e3:.1f} ms of {step * 1e3:.0f} ms CPU a step, {looks / step:.2%}")


if __name__ == "__main__":
    main()
