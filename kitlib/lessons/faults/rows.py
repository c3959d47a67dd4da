"""Faults in the keys of a batch that was sampled: a row lies elsewhere, is gone, is a ghost, an orphan, or padding that
joins a real group.
"""

from __future__ import annotations

import hashlib
from typing import Any

from kitlib.keys import TrajectoryKey, uid_of
from kitlib.lessons.faults.fault import Fault, save, there
from kitlib.lessons.faults.fields import COMPLETE, pick_key
from kitlib.lessons.faults.judges import one_group, one_key, one_partition
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, list_of_dict_to_tensordict
from kitlib.workers.bridge import partition_of

LATER = ("log_probs", "entropy", "old_log_probs", "ref_log_prob", "values", "advantages", "returns")


def misplace_row(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0, elsewhere: str = "val") -> Fault:
    """One row of the batch moves to another partition, as if a put had named the wrong one.

    To find: key, and the partition_id where the row lies.
    """
    home, key = partition_of(batch), pick_key(batch, seed)
    saved = save(tq, home, [key]) | {(elsewhere, key): (None, None)}
    tag, row = there(saved, home, key)
    tq.kv_clear(keys=[key], partition_id=home)
    tq.kv_batch_put(keys=[key], partition_id=elsewhere, fields=row, tags=[tag])
    judges = {"key": one_key(tq, key, COMPLETE), "partition_id": one_partition(elsewhere, home)}
    truth = {"key": key, "partition_id": elsewhere}
    return Fault(tq, f"{key} lies in partition {elsewhere!r}", "fewer_rows_than_keys", truth, judges, saved)


def drop_row(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """One row is cleared, and the handle still names it. To find: key."""
    home, key = partition_of(batch), pick_key(batch, seed)
    saved = save(tq, home, [key])
    tq.kv_clear(keys=[key], partition_id=home)
    judge = one_key(tq, key, "the queue holds it")
    return Fault(tq, f"{key} is no longer in the queue", "fewer_rows_than_keys", {"key": key}, {"key": judge}, saved)


def ghost_key(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """A slow writer puts a last status under the marker of a sampled prompt, which was cleared: a key is born again.

    To find: key.
    """
    home, key = partition_of(batch), uid_of(pick_key(batch, seed))
    saved = save(tq, home, [key])
    tq.kv_put(key=key, partition_id=home, tag={"status": "finished"})
    judge = one_key(tq, key, "it has fields; a ghost has a tag and nothing else")
    return Fault(tq, f"{key} is a ghost: a status, and nothing else", "ghost_key", {"key": key}, {"key": judge}, saved)


def orphan_row(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """A row of a prompt that nobody knows any more lies beside the batch. To find: key."""
    home, twin = partition_of(batch), TrajectoryKey.parse(pick_key(batch, seed))
    uid = hashlib.sha256(f"{twin} {seed}".encode()).hexdigest()[: len(twin.uid)]
    key = str(TrajectoryKey(uid, twin.session_id, twin.index))
    saved = save(tq, home, [key])
    tag, row = there(save(tq, home, [str(twin)]), home, str(twin))
    tq.kv_batch_put(keys=[key], partition_id=home, fields=row.exclude("uid"), tags=[tag])
    tq.kv_put(key=key, partition_id=home, fields={"uid": uid})
    judge = one_key(tq, key, "the batch holds it")
    return Fault(tq, f"{key} belongs to no prompt and to no batch", "orphan_rows", {"key": key}, {"key": judge}, saved)


def pad_with_real_uid(tq: QueueProtocol, batch: KVBatchMeta, eos_token_id: int, seed: int = 0) -> Fault:
    """A padding row joins the batch under the uid of a real group. To find: key, and the uid that it carries.

    Go on with `fault.batch`, the handle with the padding row.
    """
    from kitlib.workers.padding import padding_row

    home, real = partition_of(batch), pick_key(batch, seed)
    uid = uid_of(real)
    tag, row = there(save(tq, home, [real]), home, real)
    fields, padding_tag = padding_row(row[0], tag, eos_token_id)
    fields |= _later_columns(row[0], fields)
    key = str(TrajectoryKey("pad" + hashlib.sha256(real.encode()).hexdigest()[:32], 0, 0))
    saved = save(tq, home, [key])
    tq.kv_batch_put(
        keys=[key], partition_id=home, fields=list_of_dict_to_tensordict([{**fields, "uid": uid}]), tags=[padding_tag]
    )
    judges = {
        "key": one_key(tq, key, "it is an answer, no padding"),
        "uid": _uid_of_padding(tq, uid, key),
    }
    longer = KVBatchMeta(
        [*batch.keys, key], [*batch.tags, padding_tag], batch.partition_id, batch.fields, batch.extra_info
    )
    says = f"the padding row {key} carries the uid of the group {uid}"
    return Fault(tq, says, "padding_real_uid", {"key": key, "uid": uid}, judges, saved, longer)


def _later_columns(row: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Zeros, as long as the padding row, for the columns that were written after the place of padding."""
    lengths = {len(row[name]): len(fields[name]) for name in ("responses", "input_ids")}
    return {str(name): row[name].new_zeros(lengths[len(row[name])]) for name in row.keys() if name in LATER}


def _uid_of_padding(tq: QueueProtocol, uid: str, key: str) -> Any:
    group = one_group(tq, uid, "padding has not joined it")

    def judge(said: Any) -> list[str]:
        if str(said) and key.startswith(str(said)):
            return [f"{said} is what its key says: which uid is in its field?"]
        return group(said)

    return judge
