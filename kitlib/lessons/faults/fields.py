"""Faults in what a row holds: a field is lost, misspelt, too long, NaN, masked, swapped, or under a foreign uid.

All of them are planted into the rows of a batch. The handle stays as it is: it knows nothing of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import torch

from kitlib.keys import uid_of
from kitlib.lessons.faults.fault import Fault, FaultError, save, there
from kitlib.lessons.faults.judges import among, lost_field, one_group, one_key, some_keys
from kitlib.lessons.reading import name_of
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, take_snapshot
from kitlib.workers.bridge import partition_of

FIELDS_TO_LOSE = ("rm_scores", "response_mask", "rollout_log_probs")
COMPLETE = "it has every field that the others have, in the partition of the others"


def lose_field(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0, fields: Iterable[str] = FIELDS_TO_LOSE) -> Fault:
    """One row of the batch loses one of `fields`. To find: key, field."""
    home, key = partition_of(batch), pick_key(batch, seed)
    saved = save(tq, home, [key])
    tag, row = there(saved, home, key)
    lost = random.Random(seed).choice([name for name in fields if name in row])
    tq.kv_clear(keys=[key], partition_id=home)
    tq.kv_batch_put(keys=[key], partition_id=home, fields=row.exclude(lost), tags=[tag])
    judges = {"key": one_key(tq, key, COMPLETE), "field": lost_field(tq, home, key, lost)}
    truth = {"key": key, "field": lost}
    return Fault(tq, f"{key} lost the field {lost!r}", "field_missing", truth, judges, saved)


def misspell_field(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0, field: str = "rm_scores") -> Fault:
    """One row carries `field` under its name without the last letter. To find: key, and the name that is wrong."""
    home, key = partition_of(batch), pick_key(batch, seed)
    saved = save(tq, home, [key])
    tag, row = there(saved, home, key)
    wrong = field[:-1]
    tq.kv_clear(keys=[key], partition_id=home)
    tq.kv_batch_put(keys=[key], partition_id=home, fields=row.exclude(field), tags=[tag])
    tq.kv_put(key=key, partition_id=home, fields={wrong: _value(row, field)})

    def judge(answer: Any) -> list[str]:
        said = name_of(answer)
        if said == field:
            return [f"{field} is the name that the others have: under which name does this row carry it?"]
        known = said in take_snapshot(tq).partitions[home].fields
        return [] if said == wrong else [f"{said} is spelt well" if known else f"no row has {said!r}"]

    judges = {"key": one_key(tq, key, COMPLETE), "field": judge}
    says = f"{key} carries {field!r} under the name {wrong!r}"
    return Fault(tq, says, "field_missing", {"key": key, "field": wrong}, judges, saved)


def wrong_length(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0, field: str = "response_mask") -> Fault:
    """In one row `field` is one token longer than the response. To find: key, field."""
    fault = _overwrite(
        tq, batch, pick_key(batch, seed), field, lambda old: torch.cat([old, old[-1:]]), "length_mismatch"
    )
    fault.says = f"{fault.key} has one token too many in {field!r}"
    fault.truth["field"] = field
    fault.judges = {
        "key": one_key(tq, fault.key, "its fields are as long as its response"),
        "field": among([field], "it is as long as the tags of the row say"),
    }
    return fault


def nan_reward(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """The reward of one row is NaN. To find: key."""
    fault = _overwrite(tq, batch, pick_key(batch, seed), "rm_scores", _with_last(float("nan")), "nan_reward")
    fault.says = f"the reward of {fault.key} is NaN"
    fault.judges = {"key": one_key(tq, fault.key, "its reward is a number")}
    return fault


def mask_reward(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """The mask of one row is 0 on the token that holds the reward. To find: key. FaultError if no row has a reward."""
    rewards = rows_of(tq, batch, "rm_scores")
    key = _pick([key for key, scores in rewards.items() if float(scores[-1])], seed, "a reward that is not 0")
    fault = _overwrite(tq, batch, key, "response_mask", _with_last(0), "reward_on_masked_token")
    fault.says = f"{key} has its reward on a token whose response_mask is 0"
    fault.judges = {"key": one_key(tq, key, "its reward sits on a token of the model, or is 0")}
    return fault


def swap_advantages(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """Two rows of one group have each other's advantage. To find: keys, a set of two."""
    home = partition_of(batch)
    values = {key: float(row[0]) for key, row in rows_of(tq, batch, "advantages").items()}
    pairs = [(a, b) for a in values for b in values if uid_of(a) == uid_of(b) and values[a] > values[b]]
    one, other = _pick(pairs, seed, "two different advantages in one group")
    saved = save(tq, home, [one, other])
    for key, value in ((one, values[other]), (other, values[one])):
        own = saved[home, key][1]["advantages"].unbind()[0]
        tq.kv_put(key=key, partition_id=home, fields={"advantages": torch.full_like(own, value)})
    judges = {"keys": some_keys(tq, [one, other], "its advantage fits its reward")}
    says = f"{one} and {other} have each other's advantage"
    return Fault(tq, says, "mispaired_advantages", {"keys": {one, other}}, judges, saved)


def duplicate_uid(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """The field `uid` of all rows of one group names another group. To find: uid, the group that lost its own.

    FaultError if the batch has one group only.
    """
    home = partition_of(batch)
    uids = list(dict.fromkeys(map(uid_of, batch.keys)))
    if len(uids) < 2:
        raise FaultError("a uid can be given twice only if the batch has two groups")
    victim, other = random.Random(seed).sample(uids, 2)
    keys = [key for key in batch.keys if uid_of(key) == victim]
    saved = save(tq, home, keys)
    for key in keys:
        tq.kv_put(key=key, partition_id=home, fields={"uid": other})
    group = one_group(tq, victim, "the field uid of its rows is what their keys say")
    twice = f"{other}: its own rows carry its uid, and so they should; which rows carry it besides?"

    def judge(said: Any) -> list[str]:
        wrong = group(said)
        return [twice] if wrong and not one_group(tq, other, "")(said) else wrong

    says = f"the rows of {victim} carry the uid {other}"
    return Fault(tq, says, "uid_key_mismatch", {"uid": victim}, {"uid": judge}, saved)


def pick_key(batch: KVBatchMeta, seed: int) -> str:
    """The row that a seed chooses."""
    return batch.keys[random.Random(seed).randrange(len(batch.keys))]


def rows_of(tq: QueueProtocol, batch: KVBatchMeta, field: str) -> dict[str, torch.Tensor]:
    """{key: tensor} of one field."""
    column = tq.kv_batch_get(batch.keys, partition_of(batch), [field])[field]
    return dict(zip(batch.keys, column.unbind(), strict=True))


def _overwrite(
    tq: QueueProtocol, batch: KVBatchMeta, key: str, field: str, change: Callable[[Any], torch.Tensor], kind: str
) -> Fault:
    """A fault that puts a changed field over the one that is there."""
    home = partition_of(batch)
    saved = save(tq, home, [key])
    tq.kv_put(key=key, partition_id=home, fields={field: change(_value(saved[home, key][1], field))})
    return Fault(tq, "", kind, {"key": key}, {}, saved)


def _value(row: Any, field: str) -> torch.Tensor:
    """The tensor of a row that was read alone."""
    return row[field].unbind()[0].clone()


def _with_last(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A change of the last token."""

    def change(old: torch.Tensor) -> torch.Tensor:
        old[-1] = value
        return old

    return change


def _pick(candidates: list[Any], seed: int, what: str) -> Any:
    if not candidates:
        raise FaultError(f"no row of the batch has {what}: choose another batch")
    return random.Random(seed).choice(candidates)
