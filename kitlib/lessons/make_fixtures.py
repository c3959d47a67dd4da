"""Records the batch of `kitlib.lessons.fixtures`: `python -m kitlib.lessons.make_fixtures [--output data]`.

It runs one real step as far as the advantages, a few seconds. What is random but the answers (uids, seconds in the
field `metrics`) is replaced by fixed values, so the same command gives the same batch. The header of the file:

    overrides, partition_id, global_steps
    tags       {key: tag} of the rows; this order is the order of the columns
    objects    {field: value of every row} of what is no tensor
    moments    {name: {"keys", "fields", "markers": {uid: tag}, "extra_info"}}
"""

from __future__ import annotations

import argparse
import hashlib
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kitlib.config import load_config
from kitlib.keys import uid_of
from kitlib.lessons.fixtures import FILE, write_fixture
from kitlib.lessons.rollout import wait_for_rollout
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.task_runner import TaskRunner
from kitlib.transfer_queue import KVBatchMeta, take_snapshot

SEED = 27  # chosen for its groups: 0, 1, 2 and 3 of 8 answers are right
OVERRIDES = [
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.logger=[]",
    f"kitlib.seed={SEED}",
]
PARTITION = "train"


def record() -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Run the step; (header, columns) for `write_fixture`."""
    runner = TaskRunner()
    try:
        trainer = runner.start(load_config(OVERRIDES))
        moments, batch = _moments(trainer)
        data = trainer.tq.kv_batch_get(batch.keys, PARTITION)
        columns: dict[str, list[Any]] = {str(name): list(_rows(data.get(name))) for name in data.keys()}
    finally:
        runner.close()
    columns["metrics"] = [dict.fromkeys(row, 0.0) for row in columns["metrics"]]  # seconds, of this machine
    header = {
        "overrides": OVERRIDES,
        "partition_id": PARTITION,
        "global_steps": 1,
        "tags": dict(zip(batch.keys, batch.tags, strict=True)),
        "moments": moments,
    }
    return _with_fixed_uids(
        header, columns, list(dict.fromkeys(map(uid_of, sorted(batch.keys, key=_by_order(moments)))))
    )


def _moments(trainer: PPOTrainer) -> tuple[dict[str, Any], KVBatchMeta]:
    """Step through the stages and note after each what is there."""
    trainer.begin_step(1)
    trainer.submit_batch_to_rollout(trainer.next_train_batch())
    wait_for_rollout(trainer)
    listed = trainer.tq.kv_list(PARTITION)[PARTITION]
    markers = {key: tag for key, tag in listed.items() if tag.get("is_prompt")}
    batch = trainer.sample()
    moments = {"finished": _moment(trainer, batch) | {"markers": markers}, "sampled": _moment(trainer, batch)}
    batch = trainer.compute_old_log_prob(trainer.balance_batch(batch))
    moments["scored"] = _moment(trainer, batch)
    batch = trainer.compute_advantage(batch)
    moments["advantages"] = _moment(trainer, batch)
    return moments, batch


def _moment(trainer: PPOTrainer, batch: KVBatchMeta) -> dict[str, Any]:
    fields = take_snapshot(trainer.tq).partitions[PARTITION].fields
    return {"keys": batch.keys, "fields": sorted(fields), "markers": {}, "extra_info": batch.extra_info}


def _rows(column: Any) -> Any:
    return column.unbind() if hasattr(column, "unbind") and hasattr(column, "is_nested") else column.tolist()


def _by_order(moments: dict[str, Any]) -> Any:
    """Sort key: prompts in the order in which they were submitted."""
    order = list(moments["finished"]["markers"])
    return lambda key: order.index(uid_of(key))


def _with_fixed_uids(header: dict[str, Any], columns: dict[str, list[Any]], uids: Sequence[str]) -> Any:
    """Everything with fixed uids in the place of random ones, wherever they stand in a text."""
    text = json.dumps([header, {name: rows for name, rows in columns.items() if not _is_tensors(rows)}])
    for number, uid in enumerate(uids):
        digest = hashlib.sha256(f"kitlib fixture {SEED} {number}".encode()).digest()
        text = text.replace(uid, str(uuid.UUID(bytes=digest[:16], version=4)))
    header, objects = json.loads(text)
    return header, {name: objects.get(name, rows) for name, rows in columns.items()}


def _is_tensors(rows: list[Any]) -> bool:
    return hasattr(rows[0], "is_nested")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m kitlib.lessons.make_fixtures", description="Record the batch again.")
    parser.add_argument("--output", type=Path, default=Path("data"), help="folder to write to (default: ./data)")
    path = parser.parse_args(arguments).output / FILE
    write_fixture(path, *record())
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
