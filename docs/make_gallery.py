"""Makes docs/gallery.html, the real output of every view: python docs/make_gallery.py

Three steps of the shipped demo run and are recorded, with the tensors that the views show; then one row of a further
step loses its reward, and a session of another prompt never ends. Every picture is what the call above it returns.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kitlib import TaskRunner, load_config
from kitlib.inspector import (
    Cut,
    Recording,
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
    shard_map,
    stage_card,
    stage_table,
    staleness,
    tokens,
    why_waiting,
)
from kitlib.inspector.doctor import check_run, doctor
from kitlib.inspector.doctor.rules import RULES
from kitlib.inspector.page import Section, write_page
from kitlib.inspector.timeline_view import time_line
from kitlib.paths import data_path
from kitlib.run.history import RunHistory
from kitlib.run.recording import RunRecorder
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.timeline import TimelineRecorder
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, acting_as
from kitlib.workers.balance import calculate_workload, get_seqlen_balanced_partitions

HERE = Path(__file__).parent
VALUES = ["prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs", "old_log_probs", "advantages"]
VALUES += ["update_log_probs", "loss_share"]
SMALL = ["data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.val_max_samples=16"]
INTRO = (
    "Each section is one view: the question it answers, the call, and what the call returned for a run of the shipped "
    "demo on a CPU. Made by `python docs/make_gallery.py`. The same calls work in a notebook; `kitlib inspect` shows "
    "most of them in a terminal."
)


def record_three_steps(run_dir: Path) -> Recording:
    """The recording of a small run."""
    words = [*SMALL, "trainer.total_training_steps=3", "trainer.val_before_train=false", "trainer.test_freq=-1"]
    words += [f"kitlib.record_values=[{','.join(VALUES)}]", "kitlib.record_update=true", "trainer.logger=[]"]
    words += [
        "actor_rollout_ref.actor.ppo_epochs=2",
        "actor_rollout_ref.actor.optim.lr=1e-3",
    ]  # some ratios are clipped
    config, clock = load_config(words), TimelineRecorder()
    recorder = RunRecorder(config, run_dir)
    try:
        assert recorder.recorder is not None
        TaskRunner().run(config, recorder.tq, observers=[recorder, clock, RunHistory(recorder.recorder, clock)])
    finally:
        recorder.close()
    return open_recording(run_dir / "recording")


def telling_row(moment: Any) -> str:
    """The key of a rewarded row that has called the tool, if there is one with a clipped token."""
    keys = list(moment.snapshot().partitions["train"].keys)
    names = ["rm_scores", "response_mask", "loss_share"]
    data = moment.kv_batch_get(keys, "train", names)

    def tells(row: int) -> tuple[bool, bool, int]:
        score, mask, share = (data[name][row] for name in names)
        return bool(score.sum() > 0), not mask.all(), int(((share == 0) & mask.bool()).sum())

    return keys[max(range(len(keys)), key=tells)]


def recorded(recording: Recording) -> Iterator[Section]:
    """Views of a recording, as one would look at it afterwards."""
    moment = recording.find("compute_advantage", 3)
    before = recording.find("balance_batch", 3), recording.find("compute_old_log_prob", 3)
    config: Any = recording.config
    row = telling_row(recording.find("update_actor", 3))
    at = "moment = recording.find('compute_advantage', step=3)"
    yield Section(
        "presence",
        presence(moment, "update_actor", config, title="step 3 after compute_advantage"),
        "What is there, and is it enough for the next stage? Rows that look the same share a line.",
        f"recording = open_recording('runs/demo/recording')\n{at}\npresence(moment, 'update_actor', recording.config)",
    )
    yield Section("partitions", partitions(moment), "train and val side by side.", "partitions(moment)")
    yield Section(
        "group_board",
        group_board(moment, config=config),
        "Which groups teach something? Equal rewards give every session advantage zero.",
        "group_board(moment, config=recording.config)",
    )
    yield Section(
        "tokens",
        tokens(recording.find("update_actor", 3), row),
        "Which tokens are trained, and how hard? Point at a token to read its numbers.",
        f"tokens(recording.find('update_actor', 3), {row!r})    # with kitlib.record_update=true",
    )
    yield Section(
        "diff",
        diff(before[0].snapshot(), before[1].snapshot(), title="compute_old_log_prob"),
        "What did this stage change?",
        "diff(recording.find('balance_batch', 3).snapshot(), recording.find('compute_old_log_prob', 3).snapshot())",
    )
    yield Section(
        "stage_table",
        stage_table(recording.history(3), config, title="step 3"),
        "Which field appears after which stage?",
        "stage_table(recording.history(3), recording.config)",
    )
    yield Section(
        "stage_card",
        stage_card("compute_advantage", config, recording.stage_records, recording),
        "One stage: who calls it, what it reads and writes, who uses that next, what switches it; and what it did.",
        "stage_card('compute_advantage', recording.config, recording.stage_records, recording)",
    )
    yield Section(
        "staleness",
        staleness(recording.find("sample", 3), 3, config),
        "How old is what waits and what is there? In sync mode every row is as fresh as it can be.",
        "staleness(recording.find('sample', 3), 3, recording.config)",
    )
    yield Section(
        "key_life",
        key_life(recording, row),
        "Everything that happened to one key, signed by who did it.",
        f"key_life(recording, {row!r})",
    )
    yield Section(
        "provenance",
        provenance(recording, "entropy"),
        "Who wrote a field, when, over what? The worker writes whole sequences, the driver cuts out the response.",
        "provenance(recording, 'entropy')",
    )
    yield Section(
        "byte_ledger",
        byte_ledger(recording),
        "Which bytes moved? Against a batch that carries everything through the driver.",
        "byte_ledger(recording)",
    )
    yield Section(
        "time_line",
        time_line(recording.timeline(), title="three steps, sync"),
        "Who was busy when? In the sync mode driver and servers take turns.",
        "time_line(recording.timeline())",
    )
    yield Section(
        "config_table",
        config_table(config),
        "Every setting that somebody chose, where it came from, and which branches of the pipeline it switches.",
        "config_table(recording.config)",
    )


def live(runner: TaskRunner) -> Iterator[Section]:
    """Views of a queue that is running, with something wrong in it."""
    config = load_config([*SMALL, "trainer.logger=[]"])
    trainer = runner.start(config)
    assert isinstance(trainer, PPOTrainer)
    trainer.begin_step(1)
    trainer.prepare_step()
    batch = trainer.compute_old_log_prob(trainer.balance_batch(trainer.sample()))
    lose_field(trainer.tq, batch.keys[7], "rm_scores")
    yield Section(
        "presence of a broken batch",
        presence(trainer.tq, "compute_advantage", config, title="step 1 after compute_old_log_prob"),
        "One row has lost its reward: a plain get would drop the column for all rows, and raise nothing.",
        "presence(trainer.tq, 'compute_advantage', config)",
    )
    trainer.tq.kv_clear(batch.keys[3:4], "train")
    yield Section(
        "batch_handle",
        batch_handle(trainer.tq, batch),
        "What do I hold, and what does the queue hold? A handle is a copy and goes stale.",
        "batch_handle(trainer.tq, batch)",
    )
    asked = {"stage": "compute_advantage", "config": config, "batch": batch, "global_steps": 1}
    yield Section(
        "doctor",
        doctor(trainer.tq, **asked).view,
        f"What is wrong, which keys, and what to do? {len(RULES)} rules have looked at the same batch.",
        "doctor(trainer.tq, stage='compute_advantage', config=config, batch=batch, global_steps=1)",
    )
    yield Section(
        "check_run",
        check_run(trainer, overrides=SMALL, **{name: asked[name] for name in ("stage", "batch")}).view,
        "Seven questions about a run, settings first. It stops at the first that fails.",
        f"check_run(trainer, overrides={SMALL}, stage='compute_advantage', batch=batch)",
    )
    yield Section(
        "row_to_rank",
        row_to_rank(balanced(batch, 2), Cut(dp_size=2, mini_batch_size=32, micro_batch_size=8)),
        "Which key goes to which rank, mini-batch and micro-batch? Here balanced over two ranks.",
        "row_to_rank(batch, Cut(dp_size=2, mini_batch_size=32, micro_batch_size=8))",
    )
    shards = trainer.actor_rollout_wg.worker.engine.shards()
    yield Section(
        "shard_map",
        shard_map(shards),
        "Where does each parameter lie? Layers that look alike share a line.",
        "shard_map(trainer.actor_rollout_wg.worker.engine.shards())",
    )
    yield Section(
        "why_waiting",
        stuck(trainer),
        "What does sample() wait for, and will it end? One prompt has all its rows, but nobody set it to finished.",
        "why_waiting(trainer.replay_buffer.why_waiting(), trainer.tq)",
    )


def balanced(batch: KVBatchMeta, dp_size: int) -> KVBatchMeta:
    """The handle in the order that balance_batch gives it on so many ranks."""
    workload = calculate_workload([tag["seq_len"] for tag in batch.tags])
    parts = get_seqlen_balanced_partitions(workload, dp_size, equal_size=True)
    ordered = KVBatchMeta(keys=list(batch.keys), tags=list(batch.tags), partition_id=batch.partition_id)
    ordered.reorder([row for part in parts for row in part])
    return ordered


def lose_field(tq: QueueProtocol, key: str, field: str) -> None:
    """Write the row again without one of its fields."""
    tag = tq.kv_list("train")["train"][key]
    row = tq.kv_batch_get(keys=[key], partition_id="train").exclude(field)
    tq.kv_clear(keys=[key], partition_id="train")
    tq.kv_batch_put(keys=[key], partition_id="train", fields=row, tags=[tag])


def stuck(trainer: PPOTrainer) -> Any:
    """Ask for a prompt whose status was lost, from another thread, and look at the wait."""
    with acting_as(stage="generate_sequences", worker="agent-loop-0"):
        trainer.tq.kv_put(
            "c0ffee", "val", None, {"is_prompt": True, "status": "running", "num_sessions": 1, "global_steps": 1}
        )
        trainer.tq.kv_put("c0ffee_0_0", "val", {"num_turns": 3}, {"status": "success", "seq_len": 31})
    thread = threading.Thread(target=trainer.replay_buffer.sample, args=(1, "val", 1))
    thread.start()
    while (report := trainer.replay_buffer.why_waiting()) is None:
        time.sleep(0.01)
    view = why_waiting(report, trainer.tq)
    trainer.tq.kv_put("c0ffee", "val", None, {"status": "finished"})
    thread.join()
    return view


def main() -> None:
    runner = TaskRunner()
    with tempfile.TemporaryDirectory() as folder:
        sections = list(recorded(record_three_steps(Path(folder))))
        try:
            sections += live(runner)
        finally:
            runner.close()
    page = HERE / "gallery.html"
    text = write_page(sections, "The views of kitlib", INTRO)
    page.write_text(text.replace(str(data_path("mult_tool").parent), "data"), encoding="utf-8")
    print(f"{page}  {page.stat().st_size / 1000:.0f} KB, {len(sections)} views")


if __name__ == "__main__":
    main()
