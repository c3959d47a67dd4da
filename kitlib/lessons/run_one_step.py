"""Notebook 00: the advantage of the best of a few toy answers under GRPO."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kitlib.algos import compute_grpo_outcome_advantage
from kitlib.lessons.answers import Answer
from kitlib.lessons.plain_checks import check_number


def check_best_advantage(answer: Any, rewards: torch.Tensor) -> Answer:
    """Is this the advantage of the answer with the highest reward? rewards: [num_answers], one group of one prompt."""
    one_token = torch.ones(len(rewards), 1)
    group = np.array(["u"] * len(rewards))
    advantages, _ = compute_grpo_outcome_advantage(rewards[:, None], one_token, group)  # [num_answers, 1]
    best, worst = advantages.max(), advantages.min()
    difference = float(rewards.max() - rewards.mean())
    mistakes = {
        float(rewards.max()): "that is the reward itself; what counts is the distance to the others",
        difference: "that is the reward minus the mean: divide it by the standard deviation, too",
        difference / float(rewards.std(unbiased=False)): "that is the standard deviation which divides by n, not n - 1",
        float(worst): "that is the advantage of a wrong answer",
    }
    says = f"{float(best):+.1f} for the right answer, {float(worst):+.1f} for each wrong one: they sum to 0"
    return check_number(answer, float(best), mistakes, right=says)
