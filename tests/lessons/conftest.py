"""A small queue with two healthy groups, as the sampler hands it to the trainer."""

from __future__ import annotations

import pytest
import torch

from kitlib.transfer_queue import KVBatchMeta, TransferQueue, list_of_dict_to_tensordict


@pytest.fixture
def tq() -> TransferQueue:
    return TransferQueue()


@pytest.fixture
def batch(tq: TransferQueue) -> KVBatchMeta:
    """Four rows of the partition `train`, and the marker of a prompt that is still running."""
    rows = [
        {
            "uid": f"u{i}",
            "responses": torch.arange(i + 2),
            "response_mask": torch.ones(i + 2, dtype=torch.int64),
            "rollout_log_probs": torch.zeros(i + 2),
            "rm_scores": torch.zeros(i + 2),
        }
        for i in range(4)
    ]
    keys = ["u0_0_0", "u0_1_0", "u1_0_0", "u1_1_0"]
    tags = [{"status": "success", "seq_len": i + 2} for i in range(4)]
    tq.kv_batch_put(keys=["u2"], partition_id="train", tags=[{"is_prompt": True, "status": "running"}])
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train")
