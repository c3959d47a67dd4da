"""The check of notebook 00 knows right from wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kitlib.lessons.run_one_step import check_best_advantage

REWARDS = torch.tensor([0.0, 0.0, 1.0, 0.0])


@pytest.mark.parametrize("answer", [1.5, (1 - 0.25) / 0.5, torch.tensor(1.5)])
def test_right(answer: Any) -> None:
    assert check_best_advantage(answer, REWARDS).says == (
        "+1.5 for the right answer, -0.5 for each wrong one: they sum to 0",
    )


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (1, "that is the reward itself"),
        (0.75, "divide it by the standard deviation, too"),
        (1.732, "which divides by n, not n - 1"),
        (-0.5, "that is the advantage of a wrong answer"),
        (-1.5, "the sign is not"),
        (3, "too large"),
        ("1.5", "the answer is a number"),
    ],
)
def test_wrong(answer: Any, mistake: str) -> None:
    checked = check_best_advantage(answer, REWARDS)
    assert checked.ok is False
    assert mistake in checked.says[0]


def test_open() -> None:
    assert check_best_advantage(..., REWARDS).ok is None
