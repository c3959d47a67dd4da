"""A tag that lies: it says that the present weights wrote a row, and older ones did."""

from __future__ import annotations

import random
from dataclasses import replace

from kitlib.lessons.faults import Fault
from kitlib.lessons.faults.fault import FaultError, save
from kitlib.lessons.reading import meant_by, name_of
from kitlib.lessons.stay_on_policy.running import largest_difference
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol
from kitlib.workers.bridge import partition_of

CLEAR_DIFFERENCE = 0.05  # in log-prob, on at least one token; rounding is below 1e-5


def plant_false_version(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """One row of old weights gets the newest version into its tag. To find: key. Needs old_log_probs.

    `fault.batch` is the handle to go on with. Raises FaultError if all rows are of one version.
    """
    newest = max(tag["max_global_steps"] for tag in batch.tags)
    gaps = largest_difference(tq, batch)
    old = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag["min_global_steps"] < newest]
    candidates = sorted(key for key in old if gaps[key] > CLEAR_DIFFERENCE)
    if not candidates or len(old) == len(batch):
        raise FaultError("rows of the newest weights and clearly different older ones are needed")
    key = random.Random(seed).choice(candidates)
    partition_id = partition_of(batch)
    saved = save(tq, partition_id, [key])
    false = {"min_global_steps": newest, "max_global_steps": newest}
    tq.kv_put(key=key, partition_id=partition_id, tag=false)
    tags = [{**tag, **false} if name == key else tag for name, tag in zip(batch.keys, batch.tags, strict=True)]
    says = f"{key} says v{newest}, and older weights wrote it (largest difference {gaps[key]:.2f})"
    lying = replace(batch, tags=tags)

    def judge(said: object) -> list[str]:
        return _mistakes(name_of(said), key, lying, newest, gaps)

    return Fault(tq, says, None, {"key": key}, {"key": judge}, saved, lying)


def _mistakes(said: str, key: str, batch: KVBatchMeta, newest: int, gaps: dict[str, float]) -> list[str]:
    meant = meant_by(said, batch.keys)
    if meant == [key]:
        return []
    if not meant:
        return [f"the batch has no row {said!r}"]
    if len(meant) > 1:
        return [f"{len(meant)} rows of the batch begin like {said!r}: write as much of the uid as the views do"]
    tag = batch.tags[batch.keys.index(meant[0])]
    if tag["min_global_steps"] < newest:
        return [f"{said} does not lie: its tag says v{tag['min_global_steps']}, and old weights wrote it"]
    return [f"{said} does not lie: on every token server and trainer agree to {gaps[meant[0]]:.0e}"]
