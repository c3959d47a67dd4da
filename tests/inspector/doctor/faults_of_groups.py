"""More faults to plant: groups, sessions with several outputs, versions, reward dicts (see faults.py)."""

from __future__ import annotations

import copy
import random
from typing import Any

from .faults import Expected, Fault, Raw
from .healthy import entries_of, markers_of, rows_of, tensor, thing


def _group(raw: Raw, pick: random.Random) -> list[dict[str, Any]]:
    """The rows of one prompt."""
    uid = pick.choice(rows_of(raw))["key"].split("_")[0]
    return [row for row in rows_of(raw) if row["key"].startswith(uid + "_")]


def _more(raw: Raw, row: dict[str, Any], session: int, index: int) -> dict[str, Any]:
    """One more row of a prompt, like the given one."""
    new = copy.deepcopy(row)
    new["key"] = f"{row['key'].split('_')[0]}_{session}_{index}"
    entries_of(raw).append(new)
    if "batch" in raw:
        raw["batch"]["keys"].append(new["key"])
    return new


def _several_outputs(raw: Raw, pick: random.Random) -> list[dict[str, Any]]:
    """A session gets up to two more outputs; returns its rows."""
    row = pick.choice(rows_of(raw))
    session = int(row["key"].split("_")[1])
    rows = [row, *(_more(raw, row, session, index) for index in range(1, pick.randint(2, 3)))]
    for number, one in enumerate(rows):
        one["fields"]["responses"]["values"][0] = 900 + number
    return rows


def _keys(rows: list[dict[str, Any]]) -> list[str]:
    return [row["key"] for row in rows]


def too_many_sessions(raw: Raw, pick: random.Random) -> Expected:
    rows = _group(raw, pick)
    new = _more(raw, rows[0], len(rows), 0)
    uid = new["key"].split("_")[0]
    return "uneven_groups", [uid] if markers_of(raw) else [*_keys(rows), new["key"]], []


def strange_session(raw: Raw, pick: random.Random) -> Expected:
    row = _group(raw, pick)[-1]
    old = row["key"]
    row["key"] = f"{old.split('_')[0]}_{pick.randint(20, 99)}_0"
    if "batch" in raw:
        raw["batch"]["keys"][raw["batch"]["keys"].index(old)] = row["key"]
    return "session_out_of_range", [row["key"]], []


def nothing_to_train(raw: Raw, pick: random.Random) -> Expected:
    for row in rows_of(raw):
        row["fields"]["response_mask"]["values"] = [0] * row["tag"]["response_len"]
    return "no_valid_token", _keys(rows_of(raw)), ["response_mask"]


def shaped_rewards(raw: Raw, pick: random.Random) -> Expected:
    raw["config"] |= {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "reward"}
    uid = pick.choice(markers_of(raw))["key"]
    for row in rows_of(raw):
        same = row["key"].startswith(uid + "_")
        acc = 0.0 if same else row["fields"]["rm_scores"]["values"][-1]
        row["fields"]["extra_fields"] = thing({"reward_extra_info": {"acc": acc}})
    return "shaped_reward_filter", [uid], ["rm_scores", "extra_fields"]


# Several outputs a session


def several_outputs(raw: Raw, pick: random.Random) -> Expected:
    return "multi_output_session", _keys(_several_outputs(raw, pick)), []


def more_steps(raw: Raw, pick: random.Random) -> Expected:
    raw["context"] = {"dp_size": 1}
    return "extra_optimizer_steps", _keys(_several_outputs(raw, pick)), []


def heavy_session(raw: Raw, pick: random.Random) -> Expected:
    return "session_weight", _keys(_several_outputs(raw, pick)), []


def biased_baseline(raw: Raw, pick: random.Random) -> Expected:
    raw["config"]["algorithm.adv_estimator"] = pick.choice(["rloo", "opo", "gpg", "reinforce_plus_plus_baseline"])
    return "turn_bias", _keys(_several_outputs(raw, pick)), ["rm_scores"]


def masked_last_output(raw: Raw, pick: random.Random) -> Expected:
    rows = _several_outputs(raw, pick)
    rows[-1]["fields"]["response_mask"]["values"] = [0] * rows[-1]["tag"]["response_len"]
    rows[-1]["fields"]["rm_scores"]["values"] = [0.0] * rows[-1]["tag"]["response_len"]
    return "last_output_masked", _keys(rows), ["response_mask"]


# Versions


def wide_span(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    row["tag"] |= {"min_global_steps": pick.randint(1, 4), "max_global_steps": 6}
    return "version_span", [row["key"]], []


def uncorrected(raw: Raw, pick: random.Random) -> Expected:
    rows = _group(raw, pick)
    for row in rows:
        row["tag"] |= {"min_global_steps": 4, "max_global_steps": 5}
        rollout = row["fields"]["rollout_log_probs"]["values"]
        row["fields"]["old_log_probs"]["values"] = [round(value - 0.5, 4) for value in rollout]
    return "off_policy_uncorrected", _keys(rows), ["old_log_probs", "rollout_log_probs"]


# Dict columns


def reserved_key(raw: Raw, pick: random.Random) -> Expected:
    for row in rows_of(raw):
        row["fields"]["extra_fields"] = thing({"reward_extra_info": {"acc": 1.0, "reward": 0.5}})
    return "reserved_reward_key", _keys(rows_of(raw)), ["extra_fields"]


def same_content(raw: Raw, pick: random.Random) -> Expected:
    first = rows_of(raw)[0]
    for row in rows_of(raw):
        for name in ("prompts", "responses", "response_mask", "loss_mask", "rollout_log_probs", "input_ids"):
            row["fields"][name] = copy.deepcopy(first["fields"][name])
        for name in ("position_ids", "rm_scores", "old_log_probs"):
            row["fields"][name] = copy.deepcopy(first["fields"][name])
        row["tag"] |= {name: first["tag"][name] for name in ("prompt_len", "response_len", "seq_len")}
    return "duplicate_content", _keys(rows_of(raw)), ["prompts", "responses"]


def tool_output(raw: Raw, pick: random.Random) -> Expected:
    long = [row for row in rows_of(raw) if row["tag"]["response_len"] > 2] or rows_of(raw)
    for row in rows_of(raw):
        row["fields"]["attention_mask"] = tensor([1] * row["tag"]["seq_len"])
    row = pick.choice(long)
    row["fields"]["response_mask"]["values"] = [0, *[1] * (row["tag"]["response_len"] - 1)]
    return "masked_tool_tokens", [row["key"]], ["response_mask", "attention_mask"]


FAULTS: dict[str, Fault] = {
    "too_many_sessions": Fault(
        too_many_sessions, ("sample", "advantage", "update_actor"), also=("mispaired_advantages",)
    ),
    "strange_session": Fault(strange_session, ("sample", "advantage")),
    "nothing_to_train": Fault(nothing_to_train, ("update_actor", "compute_metrics")),
    "shaped_rewards": Fault(shaped_rewards, ("sample",)),
    "several_outputs": Fault(several_outputs, ("sample", "advantage", "validate")),
    "more_steps": Fault(more_steps, ("balance",)),
    "heavy_session": Fault(heavy_session, ("advantage", "update_actor")),
    "biased_baseline": Fault(biased_baseline, ("advantage",)),
    "masked_last_output": Fault(masked_last_output, ("advantage",)),
    "wide_span": Fault(wide_span, ("update_actor", "compute_metrics"), also=("off_policy_uncorrected",)),
    "uncorrected": Fault(uncorrected, ("update_actor",)),
    "reserved_key": Fault(reserved_key, ("validate",)),
    "same_content": Fault(same_content, ("advantage",), also=("zero_std_groups",)),
    "tool_output": Fault(tool_output, ("old_log_prob", "advantage")),
}
