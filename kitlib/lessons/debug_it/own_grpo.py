"""GRPO as somebody may write it with numpy: the standard deviation of a group divides by n, not by n - 1."""

from __future__ import annotations

import numpy as np
from tensordict import TensorDict

from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, jagged


def divide_by_n(tq: QueueProtocol, batch: KVBatchMeta) -> None:
    """Write the advantages and returns of a batch anew, from its rewards."""
    data = tq.kv_batch_get(batch.keys, "train", ["rm_scores", "response_mask", "uid"])
    rewards = np.array([float(row.sum()) for row in data["rm_scores"].unbind()])  # [num_rows]
    uids = np.array(data.get("uid").tolist())
    advantages = np.zeros_like(rewards)
    for uid in set(uids.tolist()):
        own = rewards[uids == uid]
        advantages[uids == uid] = (own - own.mean()) / (own.std() + 1e-6)
    masks = data["response_mask"].unbind()
    rows = [float(a) * mask.float() for a, mask in zip(advantages, masks, strict=True)]
    columns = {"advantages": jagged(rows), "returns": jagged(rows)}
    tq.kv_batch_put(batch.keys, "train", TensorDict(columns, batch_size=[len(rows)]))
