"""Healthy states of any size, as case files are written: what the mutations of the property tests start from.

`state(stage, ...)` makes whole groups with rewards that differ within a group, honest tags and every field that the
stage and the stages behind it read.
"""

from __future__ import annotations

import random
from typing import Any

BEFORE_SAMPLING = ("sample", "validate")
STAGES = ("sample", "balance", "old_log_prob", "advantage", "update_actor", "compute_metrics", "validate")
TRAINER_FIELDS = {
    "old_log_probs": ("advantage", "update_actor", "compute_metrics"),
    "advantages": ("update_actor", "compute_metrics"),
    "returns": ("update_actor", "compute_metrics"),
}


def state(stage: str, num_prompts: int, n: int, seed: int, mode: str = "sync") -> dict[str, Any]:
    """A healthy case: num_prompts prompts with n sessions each."""
    rng = random.Random(seed)
    step = 7
    partition_id = "val" if stage == "validate" else "train"
    uids = [f"{rng.getrandbits(28):07x}" for _ in range(num_prompts)]
    entries: list[dict[str, Any]] = []
    if stage in BEFORE_SAMPLING:
        entries += [
            {"key": uid, "tag": {"is_prompt": True, "status": "finished", "global_steps": step}, "fields": {}}
            for uid in uids
        ]
    for uid in uids:
        prompt = [rng.randrange(100, 900) for _ in range(rng.randint(2, 6))]
        rewards = [float(session % 2) for session in range(n)]
        entries += [
            _row(rng, uid, session, prompt, reward, stage, step, rewards) for session, reward in enumerate(rewards)
        ]
    keys = [entry["key"] for entry in entries if entry["fields"]]
    raw: dict[str, Any] = {
        "id": f"healthy_{stage}",
        "stage": stage,
        "mode": mode,
        "config": {
            "trainer.v1.trainer_mode": mode,
            "data.train_batch_size": num_prompts,
            "actor_rollout_ref.rollout.n": n,
            "actor_rollout_ref.rollout.val_kwargs.n": n,
            "algorithm.adv_estimator": "grpo",
            "actor_rollout_ref.actor.ppo_mini_batch_size": num_prompts,
        },
        "global_steps": step,
        "partitions": {partition_id: entries} | ({"train": []} if partition_id == "val" else {}),
    }
    if stage not in BEFORE_SAMPLING:
        raw["batch"] = {"partition_id": "train", "keys": keys, "fields": None}
    return raw


def entries_of(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of the partition that the stage works on."""
    return raw["partitions"]["val" if raw["stage"] == "validate" else "train"]


def rows_of(raw: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in entries_of(raw) if entry["fields"] and not entry["tag"].get("is_prompt")]


def markers_of(raw: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in entries_of(raw) if entry["tag"].get("is_prompt")]


def tensor(values: list[Any], dtype: str = "int64") -> dict[str, Any]:
    return {"dtype": dtype, "layout": "row", "shape": [len(values)], "values": values}


def thing(value: Any) -> dict[str, Any]:
    return {"dtype": "object", "object": value}


def _row(
    rng: random.Random,
    uid: str,
    session: int,
    prompt: list[int],
    reward: float,
    stage: str,
    step: int,
    rewards: list[float],
) -> dict[str, Any]:
    response = [rng.randrange(100, 900) for _ in range(rng.randint(2, 8))]
    mask = [1] * len(response)
    log_probs = [round(-rng.random(), 4) for _ in response]
    tokens = prompt + response
    fields = {
        "prompts": tensor(prompt),
        "responses": tensor(response),
        "response_mask": tensor(mask),
        "loss_mask": tensor(mask),
        "rollout_log_probs": tensor(log_probs, "float32"),
        "rm_scores": tensor([0.0] * (len(response) - 1) + [reward], "float32"),
        "input_ids": tensor(tokens),
        "position_ids": tensor(list(range(len(tokens)))),
        "uid": thing(uid),
        "raw_prompt": thing([{"role": "user", "content": "1+1=?"}]),
        "reward_model": thing({"style": "rule", "ground_truth": "2"}),
        "data_source": thing("sums"),
        "num_turns": thing(2),
        "multi_modal_inputs": thing({}),
        "extra_fields": thing({"reward_extra_info": {"acc": reward}}),
    }
    advantage = _advantage(reward, rewards)
    trainer = {
        "old_log_probs": tensor(log_probs, "float32"),
        "advantages": tensor([advantage] * len(response), "float32"),
        "returns": tensor([advantage] * len(response), "float32"),
    }
    fields |= {name: field for name, field in trainer.items() if stage in TRAINER_FIELDS[name]}
    lengths = {"prompt_len": len(prompt), "response_len": len(response), "seq_len": len(tokens)}
    versions = {"global_steps": step, "min_global_steps": step - 1, "max_global_steps": step - 1}
    return {"key": f"{uid}_{session}_0", "tag": {"status": "success"} | lengths | versions, "fields": fields}


def _advantage(reward: float, rewards: list[float]) -> float:
    mean = sum(rewards) / len(rewards)
    std = (sum((one - mean) ** 2 for one in rewards) / (len(rewards) - 1)) ** 0.5
    return round((reward - mean) / (std + 1e-6), 4)
