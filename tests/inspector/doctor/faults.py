"""Faults to plant into a healthy state at a random place, and changes that are none.

A fault returns what must be found: kind, keys, fields. `pick` is a random number generator; the place is its choice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .healthy import entries_of, markers_of, rows_of, tensor, thing

Raw = dict[str, Any]
Expected = tuple[str, list[str], list[str]]


@dataclass(frozen=True)
class Fault:
    """plant changes a state in place. stages: where it makes sense. also: kinds that are true of the result as well."""

    plant: Callable[[Raw, random.Random], Expected]
    stages: tuple[str, ...]
    also: tuple[str, ...] = ()


BATCH = ("balance", "old_log_prob", "advantage", "update_actor", "compute_metrics")


def _some(rows: list[dict[str, Any]], pick: random.Random) -> list[dict[str, Any]]:
    return pick.sample(rows, pick.randint(1, len(rows) - 1))


def drop_field(raw: Raw, pick: random.Random) -> Expected:
    chosen = _some(rows_of(raw), pick)
    field = pick.choice(["response_mask", "responses", "prompts"])
    for row in chosen:
        del row["fields"][field]
    return "field_missing", [row["key"] for row in chosen], [field]


def misspell(raw: Raw, pick: random.Random) -> Expected:
    chosen = _some(rows_of(raw), pick)
    for row in chosen:
        row["fields"]["rm_score"] = row["fields"].pop("rm_scores")
    return "field_missing", [row["key"] for row in chosen], ["rm_scores"]


def cut_mask(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    values = row["fields"]["response_mask"]["values"]
    row["fields"]["response_mask"] = tensor([*values, 1])
    return "length_mismatch", [row["key"]], ["responses", "response_mask"]


def nan_reward(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    row["fields"]["rm_scores"]["values"][-1] = "nan"
    return "nan_reward", [row["key"]], ["rm_scores"]


def wrong_uid(raw: Raw, pick: random.Random) -> Expected:
    chosen = _some(rows_of(raw), pick)
    for row in chosen:
        row["fields"]["uid"] = thing("somebody")
    return "uid_key_mismatch", [row["key"] for row in chosen], ["uid"]


def empty_row(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    row["fields"], row["tag"] = {}, {}
    return "half_registered_key", [row["key"]], []


def never_settles(raw: Raw, pick: random.Random) -> Expected:
    marker = pick.choice(markers_of(raw))
    marker["tag"]["status"] = "running"
    return "stuck_prompt", [marker["key"]], []


def unknown_status(raw: Raw, pick: random.Random) -> Expected:
    marker = pick.choice(markers_of(raw))
    marker["tag"]["status"] = "done"
    return "unknown_status", [marker["key"]], []


def no_step(raw: Raw, pick: random.Random) -> Expected:
    marker = pick.choice(markers_of(raw))
    del marker["tag"]["global_steps"]
    return "marker_tag_incomplete", [marker["key"]], []


def cleared_marker(raw: Raw, pick: random.Random) -> Expected:
    marker = pick.choice(markers_of(raw))
    marker["tag"] = {"status": "finished"}
    return "ghost_key", [marker["key"]], []


def lost_marker(raw: Raw, pick: random.Random) -> Expected:
    """Rows of a prompt that nobody knows any more beside a full batch."""
    rows = rows_of(raw)
    orphan = pick.choice(rows)
    stray = {**orphan, "key": f"0ddba11_{pick.randrange(2)}_0", "fields": {**orphan["fields"], "uid": thing("0ddba11")}}
    entries_of(raw).append(stray)
    return "orphan_rows", [stray["key"]], []


def lost_session(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    entries_of(raw).remove(row)
    uid = row["key"].split("_")[0]
    if "batch" in raw:
        raw["batch"]["keys"].remove(row["key"])
        return "short_group", [one["key"] for one in rows_of(raw) if one["key"].startswith(uid)], []
    return "short_group", [uid], []


def gone_key(raw: Raw, pick: random.Random) -> Expected:
    """The handle still names a row that the queue has cleared."""
    row = pick.choice(rows_of(raw))
    entries_of(raw).remove(row)
    return "fewer_rows_than_keys", [row["key"]], []


def in_val_too(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    raw["partitions"]["val"] = [row]
    return "partition_mixup", [row["key"]], []


def no_version(raw: Raw, pick: random.Random) -> Expected:
    chosen = _some(rows_of(raw), pick)
    for row in chosen:
        row["tag"]["min_global_steps"] = None
    return "version_tags_missing", [row["key"] for row in chosen], []


def version_from_the_future(raw: Raw, pick: random.Random) -> Expected:
    chosen = _some(rows_of(raw), pick)
    for row in chosen:
        row["tag"] |= {"min_global_steps": raw["global_steps"], "max_global_steps": raw["global_steps"]}
    return "version_tags_constant", [row["key"] for row in chosen], []


def flat_rewards(raw: Raw, pick: random.Random) -> Expected:
    reward = pick.choice([0.0, 1.0])
    for row in rows_of(raw):
        row["fields"]["rm_scores"]["values"][-1] = reward
    return "zero_std_groups", [row["key"] for row in rows_of(raw)], ["rm_scores"]


def masked_reward(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice([one for one in rows_of(raw) if one["fields"]["rm_scores"]["values"][-1]])
    row["fields"]["response_mask"]["values"] = [1] * (row["tag"]["response_len"] - 1) + [0]
    return "reward_on_masked_token", [row["key"]], ["rm_scores", "response_mask"]


def none_among_tensors(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    row["fields"]["rollout_log_probs"] = thing(None)
    return "mixed_types", [row["key"]], ["rollout_log_probs"]


def none_among_dicts(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    row["fields"]["extra_fields"] = thing(None)
    return "mixed_types", [row["key"]], ["extra_fields"]


def sparse_key(raw: Raw, pick: random.Random) -> Expected:
    chosen = _some(rows_of(raw), pick)
    for row in rows_of(raw):
        info = {"acc": 1.0} if row in chosen else {"acc": 1.0, "pred": "2"}
        row["fields"]["extra_fields"] = thing({"reward_extra_info": info})
    return "sparse_reward_keys", [row["key"] for row in chosen], ["extra_fields"]


def aborted(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    row["fields"]["extra_fields"]["object"]["stop_reason"] = "aborted"
    return "hidden_abort", [row["key"]], ["responses", "extra_fields"]


def swapped_advantages(raw: Raw, pick: random.Random) -> Expected:
    rows = rows_of(raw)
    one = pick.choice(rows)
    value = one["fields"]["advantages"]["values"][0]
    other = pick.choice([row for row in rows if row["fields"]["advantages"]["values"][0] == -value])
    for row, new in ((one, -value), (other, value)):
        row["fields"]["advantages"]["values"] = [new] * row["tag"]["response_len"]
    return "mispaired_advantages", [one["key"], other["key"]], ["advantages"]


def bad_key(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    new = row["key"].rsplit("_", 1)[0] + "_last"
    raw["batch"]["keys"][raw["batch"]["keys"].index(row["key"])] = new
    row["key"] = new
    return "bad_key", [new], []


def note_to_self(raw: Raw, pick: random.Random) -> Expected:
    """A key of somebody's own among the keys of the trainer: with a field, or with a tag alone."""
    key = pick.choice(["heartbeat", "notes-1", "feedface_7", "run_last"])
    fields, tag = pick.choice([({"x": tensor([1, 2])}, {}), ({"x": thing("y")}, {"at": 3}), ({}, {"at": 3})])
    entries_of(raw).insert(pick.randrange(3), {"key": key, "tag": tag, "fields": fields})
    return "odd_key", [key], []


FAULTS: dict[str, Fault] = {
    "drop_field": Fault(drop_field, ("sample", "old_log_prob", "advantage")),
    "misspell": Fault(misspell, ("sample", "balance", "old_log_prob", "advantage")),
    "cut_mask": Fault(cut_mask, ("sample", *BATCH)),
    "nan_reward": Fault(nan_reward, ("advantage",)),
    "wrong_uid": Fault(wrong_uid, ("sample", "advantage")),
    "empty_row": Fault(empty_row, ("sample", "advantage"), also=("short_group",)),
    "never_settles": Fault(never_settles, ("sample", "validate")),
    "unknown_status": Fault(unknown_status, ("sample",)),
    "no_step": Fault(no_step, ("sample",)),
    "cleared_marker": Fault(cleared_marker, ("sample",), also=("orphan_rows",)),
    "lost_marker": Fault(lost_marker, ("sample", "old_log_prob", "advantage")),
    "lost_session": Fault(lost_session, ("sample", *BATCH)),
    "gone_key": Fault(gone_key, BATCH),
    "in_val_too": Fault(in_val_too, ("sample", *BATCH), also=("orphan_rows",)),
    "no_version": Fault(no_version, ("update_actor", "compute_metrics")),
    "version_from_the_future": Fault(version_from_the_future, ("sample", "compute_metrics")),
    "flat_rewards": Fault(flat_rewards, ("advantage",)),
    "masked_reward": Fault(masked_reward, ("sample", "old_log_prob", "advantage")),
    "none_among_tensors": Fault(none_among_tensors, ("advantage", "old_log_prob")),
    "none_among_dicts": Fault(none_among_dicts, ("validate",)),
    "sparse_key": Fault(sparse_key, ("validate",)),
    "aborted": Fault(aborted, ("advantage", "balance")),
    "swapped_advantages": Fault(swapped_advantages, ("update_actor",)),
    "note_to_self": Fault(note_to_self, ("sample", "validate", "advantage")),
    "bad_key": Fault(bad_key, ("advantage", "old_log_prob"), also=("short_group",)),
}


# Changes that are none: the doctor stays silent.


def another_order(raw: Raw, pick: random.Random) -> None:
    entries = entries_of(raw)
    pick.shuffle(entries)
    if "batch" in raw:
        pick.shuffle(raw["batch"]["keys"])


def own_field(raw: Raw, pick: random.Random) -> None:
    for row in rows_of(raw):
        row["fields"]["my_score"] = {"dtype": "float32", "layout": "row", "shape": [], "values": 0.5}


def own_tag(raw: Raw, pick: random.Random) -> None:
    for entry in entries_of(raw):
        entry["tag"]["colour"] = pick.choice(["red", None, 3])


def own_partition(raw: Raw, pick: random.Random) -> None:
    raw["partitions"]["notes"] = [{"key": "a b", "tag": {"x": [1]}, "fields": {}}]


def tool_tokens(raw: Raw, pick: random.Random) -> None:
    row = pick.choice(rows_of(raw))
    for field in ("response_mask", "loss_mask"):
        row["fields"][field]["values"] = [1, *[0] * (row["tag"]["response_len"] - 2), 1]


def next_prompts(raw: Raw, pick: random.Random) -> None:
    """Prompts of the next batch in flight beside a complete one."""
    raw["mode"] = raw["config"]["trainer.v1.trainer_mode"] = "colocate_async"
    status = pick.choice(["pending", "running"])
    tag = {"is_prompt": True, "status": status, "global_steps": raw["global_steps"]}
    raw["partitions"]["train"].append({"key": "feedface", "tag": tag, "fields": {}})


def constant_group(raw: Raw, pick: random.Random) -> None:
    """One group of equal rewards beside others."""
    if raw["stage"] in ("update_actor", "compute_metrics"):
        return  # its advantages would have to change with it
    uid = pick.choice(rows_of(raw))["key"].split("_")[0]
    for row in rows_of(raw):
        if row["key"].startswith(uid):
            row["fields"]["rm_scores"]["values"][-1] = 1.0


HARMLESS = [another_order, own_field, own_tag, own_partition, tool_tokens, next_prompts, constant_group]
