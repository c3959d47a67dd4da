"""More faults to plant: prompts and what is known of them outside the queue (see faults.py)."""

from __future__ import annotations

import copy
import random
from typing import Any

from .faults import Expected, Fault, Raw
from .healthy import entries_of, markers_of, rows_of

THRESHOLD, STRATEGY = "trainer.v1.sampler.max_off_policy_threshold", "trainer.v1.sampler.max_off_policy_strategy"


def marker(uid: str, status: str, step: int) -> dict[str, Any]:
    return {"key": uid, "tag": {"is_prompt": True, "status": status, "global_steps": step}, "fields": {}}


def uid_of(row: dict[str, Any]) -> str:
    return row["key"].split("_")[0]


def lose_rows(raw: Raw, uid: str) -> list[str]:
    """Take all rows of a prompt away; returns their keys."""
    rows = [row for row in rows_of(raw) if uid_of(row) == uid]
    for row in rows:
        entries_of(raw).remove(row)
    return [row["key"] for row in rows]


def async_mode(raw: Raw, **settings: Any) -> None:
    raw["mode"] = raw["config"]["trainer.v1.trainer_mode"] = "colocate_async"
    raw["config"] |= settings


def out_of_reach(raw: Raw, pick: random.Random) -> Expected:
    raw["config"]["data.train_batch_size"] = len(markers_of(raw)) + pick.randint(1, 9)
    raw["context"] = {"dataloader_exhausted": True}
    return "unreachable_batch", [one["key"] for one in markers_of(raw)], []


def old_prompt_in_flight(raw: Raw, pick: random.Random) -> Expected:
    async_mode(raw, **{THRESHOLD: 2, STRATEGY: "wait"})
    old = marker("0ldfeed", pick.choice(["pending", "running"]), raw["global_steps"] - pick.randint(1, 4))
    entries_of(raw).append(old)
    return "wait_blocked", [old["key"]], []


def another_phase(raw: Raw, pick: random.Random) -> Expected:
    chosen = pick.sample(markers_of(raw), pick.randint(1, len(markers_of(raw))))
    for one in chosen:
        one["tag"]["status"] = pick.choice(["pending", "running"])
        lose_rows(raw, one["key"])
    seconds = pick.randint(60, 2000)
    raw["context"] = {"trainer_phase": pick.choice(["update_weights", "save_checkpoint", "update_actor"])}
    raw["context"] |= {"seconds_in_phase": seconds, "seconds_since_last_row": seconds + pick.randint(0, 9)}
    return "stalled_elsewhere", [one["key"] for one in markers_of(raw) if one in chosen], []


def all_old(raw: Raw, pick: random.Random) -> Expected:
    async_mode(raw, **{THRESHOLD: pick.randint(1, 3)})
    for one in markers_of(raw):
        one["tag"]["global_steps"] = raw["global_steps"] - 4
    return "all_stale", [one["key"] for one in markers_of(raw)], []


def some_old(raw: Raw, pick: random.Random) -> Expected:
    async_mode(raw, **{THRESHOLD: 2})
    one = pick.choice(markers_of(raw))
    one["tag"]["global_steps"] = raw["global_steps"] - 3
    entries_of(raw).append(marker("feedface", "running", raw["global_steps"]))
    return "stale_groups", [one["key"]], []


def failed_group(raw: Raw, pick: random.Random) -> Expected:
    async_mode(raw)
    one = pick.choice(markers_of(raw))
    one["tag"]["status"] = "failure"
    entries_of(raw).append(marker("feedface", "running", raw["global_steps"]))
    return "failure_evicted", [one["key"]], []


def failed_group_for_ever(raw: Raw, pick: random.Random) -> Expected:
    async_mode(raw)
    one = pick.choice(markers_of(raw))
    one["tag"]["status"] = "failure"
    raw["context"] = {pick.choice(["refill_available"]): False}
    return "failure_no_refill", [one["key"]], []


def failed_validation(raw: Raw, pick: random.Random) -> Expected:
    one = pick.choice(markers_of(raw))
    one["tag"]["status"] = pick.choice(["failure", "finished"])
    rows = [row for row in rows_of(raw) if uid_of(row) == one["key"]]
    for row in pick.sample(rows, pick.randint(1, len(rows))):
        entries_of(raw).remove(row)
    return "failed_val_sessions", [one["key"]], []


def underscore(raw: Raw, pick: random.Random) -> Expected:
    one = pick.choice(markers_of(raw))
    old, new = one["key"], f"set_{one['key']}"
    for entry in entries_of(raw):
        if entry["key"].split("_")[0] == old:
            entry["key"] = new + entry["key"].removeprefix(old)
        if entry["fields"].get("uid", {}).get("object") == old:
            entry["fields"]["uid"] = {"dtype": "object", "object": new}
    return "uid_underscore", [new], []


def empty_group(raw: Raw, pick: random.Random) -> Expected:
    one = pick.choice(markers_of(raw))
    lose_rows(raw, one["key"])
    return "empty_group_skipped", [one["key"]], []


def empty_groups(raw: Raw, pick: random.Random) -> Expected:
    for one in markers_of(raw):
        lose_rows(raw, one["key"])
    return "all_groups_empty", [one["key"] for one in markers_of(raw)], []


def shared_index(raw: Raw, pick: random.Random) -> Expected:
    raw["partitions"]["val"] = []
    raw["context"] = {"ready_rows": {"val": pick.randint(1, 3)}}
    return "stale_readiness", [row["key"] for row in rows_of(raw)], []


# Before and after


def thrown_away(raw: Raw, pick: random.Random) -> Expected:
    raw["before"] = {"train": copy.deepcopy(entries_of(raw))}
    uids = list(dict.fromkeys(uid_of(row) for row in rows_of(raw)))
    raw["before"]["train"] += [marker(uid, "finished", raw["global_steps"]) for uid in uids]
    gone = [f"dead{i:03d}" for i in range(pick.randint(1, 3))]
    raw["before"]["train"] += [marker(uid, "finished", raw["global_steps"]) for uid in gone]
    return "surplus_discarded", gone, []


def cleared_too_much(raw: Raw, pick: random.Random) -> Expected:
    raw["before"] = {"train": [*copy.deepcopy(entries_of(raw)), marker("feedface", "running", raw["global_steps"])]}
    asked = raw.pop("batch")["keys"]
    raw["context"] = {"clear_requested": asked, "cleared": [*asked, "feedface"]}
    raw["partitions"] = {"train": []}
    raw["stage"] = "clear"
    return "wrong_keys_cleared", ["feedface"], []


def resumed(raw: Raw, **context: Any) -> None:
    raw["stage"] = "resume"
    raw["partitions"] = {"train": []}
    raw["context"] = {"resumed_from_step": raw["global_steps"] - 1, **context}


def in_flight_at_the_save(raw: Raw, pick: random.Random) -> Expected:
    async_mode(raw)
    resumed(raw, queue_restored=True)
    uids = [f"feed{i:03d}" for i in range(pick.randint(1, 4))]
    prompts = [marker(uid, pick.choice(["pending", "running"]), raw["global_steps"] - 1) for uid in uids]
    for one in prompts:
        one["fields"]["raw_prompt"] = {"dtype": "object", "object": [{"role": "user", "content": "1+1=?"}]}
    raw["partitions"]["train"] = prompts
    return "reissue_in_flight", uids, []


def lost_prompts(raw: Raw, pick: random.Random) -> Expected:
    resumed(raw, dataloader_cursor=40 + pick.randint(1, 8), prompts_trained=40, queue_restored=False)
    return "prompts_lost", [], []


def end_of_the_epoch(raw: Raw, pick: random.Random) -> Expected:
    epoch = pick.choice([1, 2, 3])
    resumed(raw, steps_per_epoch=epoch, dataloader_cursor=12 * epoch, queue_restored=False)
    raw["context"]["resumed_from_step"] = 2 * epoch
    return "no_prompts_after_resume", [], []


# Start-up


def few_cpus(raw: Raw, pick: random.Random) -> Expected:
    units = pick.randint(2, 8)
    raw["context"] = {"ray_cpus": units, "num_storage_units": units}
    return "too_few_cpus", [], []


def old_version(raw: Raw, pick: random.Random) -> Expected:
    raw["context"] = {"transfer_queue_version": pick.choice(["0.1.6", "0.1.8"])}
    return "old_package", [], []


FAULTS: dict[str, Fault] = {
    "out_of_reach": Fault(out_of_reach, ("sample",)),
    "old_prompt_in_flight": Fault(old_prompt_in_flight, ("sample",)),
    "another_phase": Fault(another_phase, ("sample", "validate")),
    "all_old": Fault(all_old, ("sample",)),
    "some_old": Fault(some_old, ("sample",)),
    "failed_group": Fault(failed_group, ("sample",)),
    "failed_group_for_ever": Fault(failed_group_for_ever, ("sample",)),
    "failed_validation": Fault(failed_validation, ("validate",)),
    "underscore": Fault(underscore, ("sample", "validate")),
    "empty_group": Fault(empty_group, ("sample",)),
    "empty_groups": Fault(empty_groups, ("sample",)),
    "shared_index": Fault(shared_index, ("sample",)),
    "thrown_away": Fault(thrown_away, ("old_log_prob", "balance")),
    "cleared_too_much": Fault(cleared_too_much, ("compute_metrics",)),
    "in_flight_at_the_save": Fault(in_flight_at_the_save, ("sample",)),
    "lost_prompts": Fault(lost_prompts, ("sample",)),
    "end_of_the_epoch": Fault(end_of_the_epoch, ("sample",)),
    "few_cpus": Fault(few_cpus, ("sample", "advantage")),
    "old_version": Fault(old_version, ("sample", "advantage")),
}
