"""Answers as the padded columns that an estimator takes: a few toy ones, or the rows of a batch.

Shapes: token_level_rewards and response_mask [num_rows, j1], j1 the longest answer; `uid` one group name a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from kitlib.transfer_queue import KVBatchMeta, padded

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer


def toy_columns(
    rewards: Sequence[float], uids: Sequence[str] | None = None, masks: Sequence[Sequence[int]] | None = None
) -> dict[str, Any]:
    """One row a reward; the reward sits on the last token of its row.

    uids:  one group name a row; by default all rows are answers to one prompt.
    masks: one list of 0 and 1 a row, as long as the answer; by default every answer is one token of the model.
    """
    masks = masks or [[1]] * len(rewards)
    width = max(map(len, masks))
    mask = torch.tensor([[*row, *[0] * (width - len(row))] for row in masks])
    scores = torch.zeros(mask.shape)
    for row, reward in enumerate(rewards):
        scores[row, len(masks[row]) - 1] = reward
    return {
        "token_level_rewards": scores,
        "response_mask": mask,
        "uid": list(uids) if uids is not None else ["a"] * len(rewards),
    }


def two_groups() -> dict[str, Any]:
    """Eight answers to two prompts, with toy numbers for everything that some estimator asks for.

    The hard prompt is solved once in four, by an answer that called a tool (two tokens with mask 0). All answers to the
    easy one are good; one of them gets half of the reward.
    """
    masks = [[1, 1], [1, 1, 1], [1, 0, 0, 1, 1], [1, 1], [1, 1], [1, 1, 1, 1], [1, 1], [1, 1, 1]]
    columns = toy_columns([0, 0, 1, 0, 1, 1, 1, 0.5], ["hard"] * 4 + ["easy"] * 4, masks)
    mask = columns["response_mask"]
    expected = torch.tensor([0.25] * 4 + [0.875] * 4)  # what a good critic would say, [num_rows]
    return {
        **columns,
        "values": expected[:, None] * mask,
        "reward_baselines": torch.tensor([0.0] * 4 + [1.0] * 4),  # the greedy answer: wrong, right
        "old_log_probs": math.log(0.5) * mask,
        "sum_pi_squared": 0.5 * mask,
    }


def queue_columns(trainer: PPOTrainer, batch: KVBatchMeta, *more: str) -> dict[str, Any]:
    """The same columns from the queue: rewards, masks and uids of a batch, and the fields named in `more`."""
    data = trainer.pull(batch, "rm_scores", "response_mask", "uid", *more)
    columns = {name: padded(data[name]) for name in ("rm_scores", "response_mask", *more)}
    return {"token_level_rewards": columns.pop("rm_scores"), **columns, "uid": data.get("uid").tolist()}
