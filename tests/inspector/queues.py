"""Queues and snapshots that the inspector's tests look at: rows as the agent loop writes them, with values chosen by
hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kitlib.transfer_queue import Cell, PartitionSnapshot, QueueSnapshot, TransferQueue

GRPO = {"algorithm": {"adv_estimator": "grpo"}}
DATASET = ("uid", "raw_prompt", "data_source", "reward_model", "extra_info", "index", "tools_kwargs")
ROLLOUT = (
    "session_id",
    "global_steps",
    "prompts",
    "responses",
    "response_mask",
    "loss_mask",
    "input_ids",
    "position_ids",
)
EXTRAS = ("metrics", "extra_fields", "multi_modal_inputs", "num_turns", "rollout_log_probs", "rm_scores")
AGENT_LOOP = (*DATASET, *ROLLOUT, *EXTRAS)
FLOATS = Cell("float32", (20,), "row", 80)
OLD = ("log_probs", "entropy", "old_log_probs")


def tag(status: str = "success", **more: Any) -> dict[str, Any]:
    lengths = {"prompt_len": 11, "response_len": 20, "seq_len": 31}
    return {"status": status, **lengths, "global_steps": 3, "min_global_steps": 3, "max_global_steps": 3, **more}


def partition(
    keys: Sequence[str],
    fields: Sequence[str] = AGENT_LOOP,
    lacking: Sequence[tuple[str, str]] = (),
    tags: dict[str, dict[str, Any]] | None = None,
    partition_id: str = "train",
) -> PartitionSnapshot:
    """Every key has every field, but for the (key, field) pairs in `lacking`; (key, "*") is a key without any field."""
    present = np.ones((len(keys), len(fields)), dtype=bool)
    for key, field in lacking:
        present[keys.index(key), slice(None) if field == "*" else fields.index(field)] = False
    made = tuple((tags or {}).get(key, tag()) for key in keys)
    empty = Cell("", (), "object", 0)
    return PartitionSnapshot(
        partition_id, tuple(keys), made, tuple(fields), present, present.astype(np.int32), (empty, FLOATS)
    )


def snapshot(*partitions: PartitionSnapshot) -> QueueSnapshot:
    return QueueSnapshot(time.time(), {part.partition_id: part for part in partitions})


def keys_of(uids: Sequence[str] = ("f3a1", "9c02"), n: int = 4) -> list[str]:
    return [f"{uid}_{session}_0" for uid in uids for session in range(n)]


def marker(status: str) -> dict[str, Any]:
    return {"is_prompt": True, "status": status, "global_steps": 4}


def put_row(
    tq: TransferQueue, key: str, reward: float | None, advantage: float | None = None, length: int = 4, **tags: Any
) -> None:
    """A trajectory whose last token carries the reward and whose second token is a tool's."""
    mask = torch.tensor([1, 0, *[1] * (length - 2)])
    fields: dict[str, Any] = {"responses": torch.arange(length), "response_mask": mask}
    if reward is not None:
        fields["rm_scores"] = torch.tensor([*[0.0] * (length - 1), reward])
    if advantage is not None:
        fields["advantages"] = advantage * mask.float()
    tq.kv_put(key, "train", fields, tag(response_len=length, seq_len=11 + length, **tags))


def board_queue(
    rewards: dict[str, Sequence[float | None]], advantages: dict[str, Sequence[float]] | None = None
) -> TransferQueue:
    """A queue with one row a reward: session numbers count up, None is a session without a row."""
    tq = TransferQueue()
    for uid, values in rewards.items():
        for session, reward in enumerate(values):
            if reward is not None:
                put_row(tq, f"{uid}_{session}_0", reward, advantages[uid][session] if advantages else None)
    return tq
