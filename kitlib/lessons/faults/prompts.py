"""Faults before sampling, among markers and rows of prompts: a session is lost, a prompt never settles, a uid has an
underscore, a group is of old weights."""

from __future__ import annotations

import random
from typing import Any

from kitlib.keys import TrajectoryKey, is_trajectory_key, uid_of
from kitlib.lessons.faults.fault import Fault, FaultError, save, there
from kitlib.lessons.faults.judges import one_group
from kitlib.transfer_queue import QueueProtocol

VERSIONS = ("global_steps", "min_global_steps", "max_global_steps")


def lose_session(tq: QueueProtocol, seed: int = 0, partition_id: str = "train") -> Fault:
    """One session of a finished prompt has left no row, as if it had been killed. To find: uid, session_id."""
    uid = pick_prompt(tq, seed, partition_id)
    key = random.Random(seed).choice(_rows(tq, uid, partition_id))
    session_id = TrajectoryKey.parse(key).session_id
    saved = save(tq, partition_id, [key])
    tq.kv_clear(keys=[key], partition_id=partition_id)

    def judge(said: Any) -> list[str]:
        if said == session_id and not isinstance(said, bool):
            return []
        there = {TrajectoryKey.parse(row).session_id for row in _rows(tq, uid, partition_id)}
        return [
            f"session {said} has its row" if said in there else f"no prompt has a session {said}: they count from 0"
        ]

    judges = {"uid": one_group(tq, uid, "all its sessions have left a row"), "session_id": judge}
    truth = {"uid": uid, "session_id": session_id}
    return Fault(tq, f"session {session_id} of {uid} has left no row", "short_group", truth, judges, saved)


def stick_prompt(tq: QueueProtocol, seed: int = 0, partition_id: str = "train") -> Fault:
    """The marker of one prompt says `running` though all its rows are there. To find: uid."""
    uid = pick_prompt(tq, seed, partition_id)
    saved = save(tq, partition_id, [uid])
    tq.kv_put(key=uid, partition_id=partition_id, tag={"status": "running"})
    judges = {"uid": one_group(tq, uid, "its marker says that it has settled")}
    return Fault(tq, f"the marker of {uid} says running for ever", "stuck_prompt", {"uid": uid}, judges, saved)


def underscore_in_uid(tq: QueueProtocol, seed: int = 0, partition_id: str = "train") -> Fault:
    """One prompt was given a uid with an underscore; marker and rows agree, and the sampler does not. To find: uid."""
    uid = pick_prompt(tq, seed, partition_id)
    wrong = f"{uid[:6]}_{uid[6:]}"
    old, new = [uid, *_rows(tq, uid, partition_id)], []
    saved = save(tq, partition_id, old)
    tq.kv_clear(keys=old, partition_id=partition_id)
    for key in old:
        tag, row = there(saved, partition_id, key)
        new.append(wrong + key[len(uid) :])
        tq.kv_batch_put(keys=new[-1:], partition_id=partition_id, fields=row, tags=[tag])
        if row is not None:
            tq.kv_put(key=new[-1], partition_id=partition_id, fields={"uid": wrong})
    saved |= {(partition_id, key): (None, None) for key in new}
    judges = {"uid": one_group(tq, wrong, "there is no underscore in its uid")}
    return Fault(tq, f"the uid {wrong} has an underscore", "uid_underscore", {"uid": wrong}, judges, saved)


def stale_group(tq: QueueProtocol, seed: int = 0, partition_id: str = "train", num_steps: int = 5) -> Fault:
    """Marker and rows of one prompt are `num_steps` steps older than the others. To find: uid.

    FaultError if the queue is too young: `load_fixture("finished", global_steps=9)` gives an older one.
    """
    uid = pick_prompt(tq, seed, partition_id)
    keys = [uid, *_rows(tq, uid, partition_id)]
    tags = tq.kv_list(partition_id)[partition_id]
    if min(tags[key][name] for key in keys for name in VERSIONS if name in tags[key]) < num_steps:
        raise FaultError(f"no group can be {num_steps} steps older than weights of these versions")
    saved = save(tq, partition_id, keys)
    for key in keys:
        older = {name: tags[key][name] - num_steps for name in VERSIONS if name in tags[key]}
        tq.kv_put(key=key, partition_id=partition_id, tag=older)
    judges = {"uid": one_group(tq, uid, "its weight versions are those of the other groups")}
    return Fault(tq, f"{uid} is {num_steps} steps older than the others", "stale_groups", {"uid": uid}, judges, saved)


def pick_prompt(tq: QueueProtocol, seed: int, partition_id: str) -> str:
    """The prompt that a seed chooses among the finished ones."""
    listed = tq.kv_list(partition_id).get(partition_id, {})
    uids = sorted(key for key, tag in listed.items() if tag.get("is_prompt") and tag.get("status") == "finished")
    if not uids:
        raise FaultError(f"{partition_id} has no finished prompt: this fault is planted before sample")
    return random.Random(seed).choice(uids)


def _rows(tq: QueueProtocol, uid: str, partition_id: str) -> list[str]:
    return sorted(
        key for key in tq.kv_list(partition_id)[partition_id] if is_trajectory_key(key) and uid_of(key) == uid
    )
