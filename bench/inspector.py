"""What the views and the recorder cost.

    python bench/inspector.py

Views: a queue of so many rows of 30 fields, two steps of calls in its log; milliseconds to make a view, to write it as
HTML and as text of 120 columns, and its size (medians of five). Recorder: the shipped demo with and without
kitlib.record, steps taken in turn; CPU seconds, because another process on the machine must not count.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from common import print_table
from tensordict import NonTensorStack, TensorDict

from kitlib import TaskRunner, load_config
from kitlib.inspector import (
    View,
    batch_handle,
    byte_ledger,
    config_table,
    diff,
    group_board,
    key_life,
    open_recording,
    partitions,
    presence,
    provenance,
    row_to_rank,
    stage_card,
    stage_table,
    staleness,
)
from kitlib.run.recording import RunRecorder
from kitlib.trainer.observers import Observer
from kitlib.transfer_queue import KVBatchMeta, TransferQueue, acting_as, jagged, take_snapshot, watch
from kitlib.transfer_queue.watched import WatchedQueue

FLOATS = ("rm_scores", "rollout_log_probs", "old_log_probs", "advantages", "returns", "entropy", "log_probs")
INTS = ("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids")
OBJECTS = 17
SESSIONS, RUNS = 8, 5


def filled(num_rows: int) -> tuple[WatchedQueue, KVBatchMeta]:
    """A queue with groups of 8 sessions, and the handle of its rows."""
    tq = watch(TransferQueue(total_storage_size=2 * num_rows))
    keys = [f"{row // SESSIONS:08x}_{row % SESSIONS}_0" for row in range(num_rows)]
    lens = torch.randint(8, 40, (num_rows,), generator=torch.Generator().manual_seed(0)).tolist()
    columns: dict[str, Any] = {name: jagged([torch.rand(n).round() for n in lens]) for name in FLOATS}
    columns |= {name: jagged([torch.ones(n, dtype=torch.int64) for n in lens]) for name in INTS}
    columns |= {f"object_{i:02d}": NonTensorStack(*[{"row": row} for row in range(num_rows)]) for i in range(OBJECTS)}
    tags = [
        {"status": "success", "prompt_len": 8, "response_len": n, "seq_len": n + 8, "global_steps": 3}
        | {"min_global_steps": 2, "max_global_steps": 3}
        for n in lens
    ]
    with acting_as(stage="generate_sequences", worker="agent-loop-0"):
        tq.kv_batch_put(keys, "train", TensorDict(columns, batch_size=num_rows), tags)
    for stage, fields in (("compute_old_log_prob", INTS), ("compute_advantage", FLOATS), ("update_actor", INTS)):
        with acting_as(stage=stage, worker="ActorRolloutRefWorker"):
            tq.kv_batch_get(keys, "train", list(fields))
    return tq, KVBatchMeta(keys=keys, tags=tags, partition_id="train")


def views(tq: WatchedQueue, batch: KVBatchMeta) -> Iterator[tuple[str, Callable[[], View]]]:
    """Every view that is a function of a queue; diff against the queue without its first row."""
    config, snapshot = load_config(), take_snapshot(tq)
    without = TransferQueue(total_storage_size=2 * len(batch))
    without.kv_batch_put(batch.keys[1:], "train", None, batch.tags[1:])
    before = take_snapshot(without)
    yield "presence", lambda: presence(snapshot, "update_actor", config)
    yield "presence, a line a row", lambda: presence(snapshot, "update_actor", config, collapse=False)
    yield "partitions", lambda: partitions(snapshot)
    yield "batch_handle", lambda: batch_handle(snapshot, batch)
    yield "group_board", lambda: group_board(tq, config=config)
    yield "diff", lambda: diff(before, snapshot)
    yield "stage_table, 10 stages", lambda: stage_table([("sample", snapshot)] * 10, config)
    yield "staleness", lambda: staleness(snapshot, 3, config)
    yield "row_to_rank, 8 ranks", lambda: row_to_rank(batch, dp_size=8)
    yield "key_life", lambda: key_life(tq, batch.keys[5])
    yield "provenance", lambda: provenance(tq, "rm_scores")
    yield "byte_ledger", lambda: byte_ledger(tq)
    yield "stage_card", lambda: stage_card("update_actor", config, events=tq)
    yield "config_table", lambda: config_table(config)


def median_ms(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def measure_views(num_rows: int) -> None:
    tq, batch = filled(num_rows)
    rows = [("take_snapshot", median_ms(lambda: take_snapshot(tq)), "", "", "")]
    for name, make in views(tq, batch):
        view = make()
        texts = [median_ms(call) for call in (make, view.html, lambda view=view: view.text(120))]
        rows.append((name, *texts, f"{len(view.html().encode()) / 1000:.1f}"))
    title = f"{num_rows:,} rows of {len(INTS) + len(FLOATS) + OBJECTS} fields"
    print_table(title, ("view", "make ms", "html ms", "text ms", "KB"), rows)


class StepClock(Observer):
    """CPU seconds of every step but the first two, its metrics and its dump included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, trainer: Any) -> None:
        self._began = time.process_time()

    def on_metrics(self, trainer: Any, metrics: dict[str, Any], step: int) -> None:
        self.seconds.append(time.process_time() - self._began)


def run_steps(recorded: bool, folder: Path, num_steps: int = 12) -> list[float]:
    words = ["trainer.logger=[]", "trainer.val_before_train=false", "trainer.test_freq=-1"]
    words += [f"trainer.total_training_steps={num_steps}", f"kitlib.record={str(recorded).lower()}"]
    config, clock = load_config(words), StepClock()
    recorder = RunRecorder(config, folder)
    try:
        TaskRunner().run(config, recorder.tq, observers=[recorder, clock])
    finally:
        recorder.close()
    return clock.seconds[2:]


def measure_recorder(num_turns: int = 4) -> None:
    plain, recorded = [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(num_turns):
            plain += run_steps(False, Path(folder) / f"plain{turn}")
            recorded += run_steps(True, Path(folder) / f"recorded{turn}")
        last = Path(folder) / f"recorded{num_turns - 1}" / "recording"
        size = sum(path.stat().st_size for path in last.rglob("*.*")) / 12
        began = time.perf_counter()
        recording = open_recording(last)
        opened = time.perf_counter() - began
        calls = len(recording.events()) / 12
    costs = statistics.median(recorded) / statistics.median(plain) - 1
    rows = [
        ("CPU seconds a step, not recorded (median)", statistics.median(plain)),
        ("CPU seconds a step, recorded (median)", statistics.median(recorded)),
        ("cost of recording", f"{costs:.1%}"),
        ("queue calls a step", f"{calls:.0f}"),
        ("KB a step on disk", f"{size / 1000:.0f}"),
        ("seconds to open the recording of 12 steps", opened),
    ]
    print_table("recorder, the shipped demo (128 rows a step)", ("", "value"), rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure_views(128)
    measure_views(10_000)
    measure_recorder()
