"""More faults to plant: lengths, layouts, padding and outputs of rows (see faults.py)."""

from __future__ import annotations

import copy
import random
from typing import Any

from .faults import Expected, Fault, Raw
from .healthy import entries_of, rows_of, tensor, thing

PAD = "pad0123456789abcdef0123456789abcdef"
AFTER = ("old_log_prob", "advantage", "update_actor", "compute_metrics")  # padding rows are made before


def _some(rows: list[dict[str, Any]], pick: random.Random) -> list[dict[str, Any]]:
    return pick.sample(rows, pick.randint(1, len(rows)))


def _keys(rows: list[dict[str, Any]]) -> list[str]:
    return [row["key"] for row in rows]


def narrowed(raw: Raw, pick: random.Random) -> Expected:
    field = {"old_log_prob": "responses", "advantage": "rm_scores", "update_actor": "advantages"}[raw["stage"]]
    raw["batch"]["fields"] = [name for name in rows_of(raw)[0]["fields"] if name != field]
    return "batch_fields_narrowed", raw["batch"]["keys"], [field]


def lost_images(raw: Raw, pick: random.Random) -> Expected:
    chosen = _some(rows_of(raw), pick)
    for row in chosen:
        content = [{"type": "image"}, {"type": "text", "text": "what is it?"}]
        row["fields"]["raw_prompt"] = thing([{"role": "user", "content": content}])
    return "images_missing", _keys(chosen), ["multi_modal_inputs", "position_ids"]


def asked_in_vain(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    del row["fields"]["raw_prompt"]
    raw["request"] = {"keys": raw["batch"]["keys"], "fields": ["responses", "raw_prompt"], "partition_id": "train"}
    return "field_missing", [row["key"]], ["raw_prompt"]


def no_prompt_to_send_again(raw: Raw, pick: random.Random) -> Expected:
    raw["stage"] = "resume"
    raw["mode"] = raw["config"]["trainer.v1.trainer_mode"] = "separate_async"
    tag = {"is_prompt": True, "status": "running", "global_steps": raw["global_steps"]}
    uids = [f"feed{i:03d}" for i in range(pick.randint(1, 3))]
    raw["partitions"]["train"] = [{"key": uid, "tag": dict(tag), "fields": {"index": thing(1)}} for uid in uids]
    return "field_missing", uids, ["raw_prompt"]


def same_key_twice(raw: Raw, pick: random.Random) -> Expected:
    key = pick.choice(raw["batch"]["keys"])
    raw["batch"]["keys"].append(key)
    return "same_key_twice", [key], []


def clashing_chunks(raw: Raw, pick: random.Random) -> Expected:
    keys = raw["batch"]["keys"]
    half = len(keys) // 2
    raw["batches"] = [
        {"partition_id": "train", "keys": part, "fields": None, "extra_info": {"temperature": 1.0, "seconds": i}}
        for i, part in enumerate((keys[:half], keys[half:]))
    ]
    return "batch_info_clash", keys, []


def unreadable(raw: Raw, pick: random.Random) -> Expected:
    chosen = _some(rows_of(raw), pick)
    raw["unreadable"] = {"train": {row["key"]: ["responses"] for row in chosen}}
    return "value_unreadable", _keys(chosen), ["responses"]


# Lengths and layouts


def padded_to_total(raw: Raw, pick: random.Random) -> Expected:
    total = sum(row["tag"]["response_len"] for row in rows_of(raw))
    fields = ["responses", "response_mask", "loss_mask", "rollout_log_probs", "rm_scores"]
    for row in rows_of(raw):
        for name in fields:
            old = row["fields"][name]
            row["fields"][name] = tensor([*old["values"], *[0] * (total - len(old["values"]))], old["dtype"])
    return "padded_to_total", _keys(rows_of(raw)), fields


def wrong_tag(raw: Raw, pick: random.Random) -> Expected:
    chosen = _some(rows_of(raw), pick)
    for row in chosen:
        row["tag"][pick.choice(["prompt_len", "response_len", "seq_len"])] += 1
    return "tag_mismatch", _keys(chosen), []


def empty_response(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    fields, prompt = row["fields"], row["fields"]["prompts"]["values"]
    for name in ("responses", "response_mask", "loss_mask", "rollout_log_probs", "rm_scores"):
        fields[name] = tensor([], fields[name]["dtype"])
    fields |= {"input_ids": tensor(prompt), "position_ids": tensor(list(range(len(prompt))))}
    row["tag"] |= {"response_len": 0, "seq_len": len(prompt)}
    return "empty_response", [row["key"]], ["responses"]


def short_attention(raw: Raw, pick: random.Random) -> Expected:
    for row in rows_of(raw):
        row["fields"]["attention_mask"] = tensor([1] * row["tag"]["seq_len"])
    chosen = _some(rows_of(raw), pick)
    for row in chosen:
        if pick.random() < 0.5:
            row["fields"]["attention_mask"]["values"][-1] = 0
        else:
            row["fields"]["attention_mask"] = tensor([1] * (row["tag"]["seq_len"] - 1))
    return "attention_mask_short", _keys(chosen), ["attention_mask"]


def dense_column(raw: Raw, pick: random.Random) -> Expected:
    rows = rows_of(raw)
    raw["columns"] = {
        "train": {"prompts": {"layout": "dense", "shape": [len(rows), 4]}, "responses": {"layout": "jagged"}}
    }
    return "dense_beside_jagged", _keys(rows), ["prompts"]


def dense_put(raw: Raw, pick: random.Random) -> Expected:
    rows = rows_of(raw)
    width = max(row["tag"]["response_len"] for row in rows) + 1
    field = pick.choice(["responses", "response_mask"])
    put = {"partition_id": "train", "keys": _keys(rows)}
    raw["writes"] = [put | {"columns": {field: {"layout": "dense", "shape": [len(rows), width]}}}]
    return "dense_write", _keys(rows), [field]


def ragged_coordinates(raw: Raw, pick: random.Random) -> Expected:
    for row in rows_of(raw):
        shape = [3, row["tag"]["seq_len"]]
        row["fields"]["position_ids"] = {"dtype": "int64", "layout": "row", "shape": shape, "arange": True}
    raw["columns"] = {"train": {"position_ids": {"layout": "jagged", "ragged_dim": 1, "values_shape": [6, 9]}}}
    return "ragged_dim", _keys(rows_of(raw)), ["position_ids"]


def boxed_number(raw: Raw, pick: random.Random) -> Expected:
    for row in rows_of(raw):
        row["fields"]["my_length"] = tensor([pick.randrange(9)])
    return "one_element_rows", _keys(rows_of(raw)), ["my_length"]


# Padding


def padding_row(raw: Raw, number: int = 0, length: int = 128, mask: int = 0, **tag: Any) -> dict[str, Any]:
    """A padding row as balance_batch makes it, with the fields of the first row; it joins the batch."""
    fields = copy.deepcopy(rows_of(raw)[0]["fields"])
    for name, field in fields.items():
        if field["dtype"] == "float32":
            fields[name] = tensor([0.0], "float32")
    fields |= {"responses": tensor([2]), "response_mask": tensor([mask]), "loss_mask": tensor([mask])}
    fields |= {"uid": thing(PAD), "prompts": {"dtype": "int64", "layout": "row", "shape": [length - 1], "fill": 2}}
    fields |= {name: {**fields["prompts"], "shape": [length]} for name in ("input_ids", "position_ids")}
    lens = {"prompt_len": length - 1, "response_len": 1, "seq_len": length}
    versions = {"global_steps": 7, "min_global_steps": 6, "max_global_steps": 6}
    entry = {"key": f"{PAD}_{number}_0", "tag": {"status": "success", **lens, **versions, **tag}, "fields": fields}
    entries_of(raw).append(entry)
    raw["batch"]["keys"].append(entry["key"])
    return entry


def padding_without_tag(raw: Raw, pick: random.Random) -> Expected:
    return "padding_tag_missing", [padding_row(raw, i)["key"] for i in range(pick.randint(1, 4))], []


def training_padding(raw: Raw, pick: random.Random) -> Expected:
    padding_row(raw, 0, is_padding=True)
    bad = padding_row(raw, 1, is_padding=True, mask=1)
    return "padding_mask_one", [bad["key"]], ["response_mask", "loss_mask"]


def padding_of_a_group(raw: Raw, pick: random.Random) -> Expected:
    bad = padding_row(raw, is_padding=True)
    bad["fields"]["uid"] = thing(pick.choice(rows_of(raw)[:-1])["key"].split("_")[0])
    return "padding_real_uid", [bad["key"]], ["uid"]


def short_padding(raw: Raw, pick: random.Random) -> Expected:
    bad = padding_row(raw, length=pick.choice([2, 3, 64, 127]), is_padding=True)
    return "padding_too_short", [bad["key"]], ["input_ids"]


def too_little_padding(raw: Raw, pick: random.Random) -> Expected:
    bad = padding_row(raw, is_padding=True)
    raw["context"] = {"dp_size": 2}
    return "padding_too_short", [bad["key"]], []


def diluting_padding(raw: Raw, pick: random.Random) -> Expected:
    for row in rows_of(raw):
        rollout = row["fields"]["rollout_log_probs"]["values"]
        row["fields"]["old_log_probs"]["values"] = [round(value - 1.0, 4) for value in rollout]
    keys = [padding_row(raw, i, is_padding=True)["key"] for i in range(len(rows_of(raw)))]
    return "padding_dilutes_metrics", keys, ["rollout_log_probs", "old_log_probs"]


def dumped_padding(raw: Raw, pick: random.Random) -> Expected:
    raw["stage"] = "log_rollout_data"
    return "synthetic_row", [padding_row(raw, is_padding=True)["key"]], []


def stand_in(raw: Raw, pick: random.Random) -> Expected:
    row = pick.choice(rows_of(raw))
    prompt = row["fields"]["prompts"]["values"]
    for name, field in row["fields"].items():
        if field["dtype"] == "float32":
            row["fields"][name] = tensor([0.0], "float32")
    row["fields"] |= {"responses": tensor([2]), "response_mask": tensor([0]), "loss_mask": tensor([0])}
    row["fields"] |= {"input_ids": tensor([*prompt, 2]), "position_ids": tensor(list(range(len(prompt) + 1)))}
    row["tag"] |= {"response_len": 1, "seq_len": len(prompt) + 1}
    return "synthetic_row", [row["key"]], ["response_mask"]


FAULTS: dict[str, Fault] = {
    "narrowed": Fault(narrowed, ("old_log_prob", "advantage", "update_actor")),
    "lost_images": Fault(lost_images, ("old_log_prob", "advantage")),
    "asked_in_vain": Fault(asked_in_vain, ("update_actor", "advantage")),
    "no_prompt_to_send_again": Fault(no_prompt_to_send_again, ("sample",)),
    "same_key_twice": Fault(same_key_twice, AFTER),
    "clashing_chunks": Fault(clashing_chunks, ("update_actor", "advantage")),
    "unreadable": Fault(unreadable, ("old_log_prob", "sample")),
    "padded_to_total": Fault(padded_to_total, ("old_log_prob",), also=("length_mismatch", "tag_mismatch")),
    "wrong_tag": Fault(wrong_tag, ("balance", "old_log_prob")),
    "empty_response": Fault(empty_response, ("sample", "old_log_prob")),
    "short_attention": Fault(short_attention, ("old_log_prob", "advantage")),
    "dense_column": Fault(dense_column, ("old_log_prob",)),
    "dense_put": Fault(dense_put, ("old_log_prob", "advantage")),
    "ragged_coordinates": Fault(ragged_coordinates, ("old_log_prob",)),
    "boxed_number": Fault(boxed_number, AFTER),
    "padding_without_tag": Fault(padding_without_tag, AFTER, also=("padding_dilutes_metrics",)),
    "training_padding": Fault(training_padding, AFTER, also=("padding_dilutes_metrics",)),
    "padding_of_a_group": Fault(padding_of_a_group, ("advantage", "update_actor"), also=("padding_dilutes_metrics",)),
    "short_padding": Fault(short_padding, AFTER, also=("padding_dilutes_metrics",)),
    "too_little_padding": Fault(too_little_padding, ("old_log_prob", "update_actor")),
    "diluting_padding": Fault(diluting_padding, ("advantage",)),
    "dumped_padding": Fault(dumped_padding, ("compute_metrics",)),
    "stand_in": Fault(stand_in, ("sample", "advantage"), also=("zero_std_groups",)),
}
