"""Lesson 08: every check takes the right advantages and names each planted mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY, register_adv_est, required_fields
from kitlib.lessons.answers import Answer
from kitlib.lessons.compute_advantage import (
    check_gae,
    check_grpo,
    check_median_baseline,
    check_sessions,
    heat_map,
    plot_success,
    side_by_side,
    toy_columns,
    two_groups,
)

REWARDS = [0.2, 0.2, 0.8, 0.8]
KEYS = ["a_0_0", "a_0_1", "a_1_0", "a_2_0"]
TOKENS, VALUES = [0, 0, 0, 1], [0.2, 0.4, 0.6, 0.5]


def words(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


class TestGrpo:
    @pytest.mark.parametrize("answer", [[-0.87, -0.87, 0.87, 0.87], torch.tensor([-0.866, -0.866, 0.866, 0.866])])
    def test_right(self, answer: Any) -> None:
        assert check_grpo(answer, REWARDS).ok is True

    @pytest.mark.parametrize("answer", [..., [..., 1, 1, 1]])
    def test_open(self, answer: Any) -> None:
        assert check_grpo(answer, REWARDS).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ([-1, -1, 1, 1], "the standard deviation over n; GRPO's divides by n - 1"),
            ([-0.3, -0.3, 0.3, 0.3], "now divide by the standard deviation"),
            ([0.2, 0.2, 0.8, 0.8], "these are the rewards"),
            ([0.87, 0.87, -0.87, -0.87], "the sign is turned"),
            ([-2.5, -2.5, 2.5, 2.5], "you divided by the variance"),
            ([0.58, 0.58, 2.31, 2.31], "did not subtract the mean"),
            ([-0.4, -0.4, 0.4, 0.4], "the mean of the other answers (RLOO)"),
            ([-0.87, -0.87, 0.87, 0.5], "not right at position 3"),
            ([-0.87, 0.87], "2 numbers for 4"),
            (0.87, "the answer is a list of 4 numbers"),
            ("0.87", "the answer is a list of 4 numbers"),
            ([[1, 2, 3, 4]], "the answer is a list of 4 numbers"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(check_grpo(answer, REWARDS))

    def test_a_formula_that_happens_to_be_right_is_not_named(self) -> None:
        """With rewards -1, 0, 1 mean, sum and raw reward fall together: the answer is right, whatever its formula."""
        assert check_grpo([-1, 0, 1], [-1, 0, 1]).ok is True


class TestSessions:
    def test_right(self) -> None:
        assert check_sessions([1.15, 1.15, -0.58, -0.58], KEYS, [1, 1, 0, 0]).ok is True

    def test_open(self) -> None:
        assert check_sessions(..., KEYS, [1, 1, 0, 0]).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ([0.87, 0.87, -0.87, -0.87], "you let every row into the mean"),
            ([0, 1.15, -0.58, -0.58], "the earlier outputs of a session are not left at 0"),
            ([-1.15, -1.15, 0.58, 0.58], "the sign is turned"),
            ([1.15, 1.15, -0.58], "3 numbers for 4"),
            ([0.67, 0.67, -0.33, -0.33], "the mean of the sessions is subtracted; now divide"),
            ([1.41, 1.41, -0.71, -0.71], "the standard deviation over n; GRPO's divides by n - 1"),
            ([1, 1, 0, 0], "these are the rewards: subtract the mean of the sessions"),
            ([3, 1, 2, 0], "not right at position 0, 1, 2, 3"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(check_sessions(answer, KEYS, [1, 1, 0, 0]))

    def test_the_first_output_is_not_the_last(self) -> None:
        assert "the first output of each session" in words(check_sessions([-0.71, -0.71, 0.71], KEYS[:3], [0, 2, 1]))


class TestGae:
    def test_right(self) -> None:
        assert check_gae([0.34, 0.28, 0.15, 0.5], TOKENS, VALUES, lam=0.5).ok is True
        assert check_gae([0.8, 0.6, 0.4, 0.5], TOKENS, VALUES).ok is True

    def test_open(self) -> None:
        assert check_gae(..., TOKENS, VALUES).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ([0.2, 0.2, -0.1, 0.5], "these are the steps delta_t"),
            ([0.54, 0.68, 0.75, 1.0], "these are the returns A + V"),
            ([1, 1, 1, 1], "this is the reward to go"),
            ([-0.2, -0.4, -0.6, 0.5], "the value of the next token is missing"),
            ([0.2, 0.3, 0.05, 0.525], "you summed from the front"),
            ([-0.34, -0.28, -0.15, -0.5], "the sign is turned"),
            ([0.15, -0.28, -1.14, 1.27], "this is whitened"),
            ([0.8, 0.6, 0.4, 0.5], "this is for gamma = lam = 1"),
            ([0.5, 0.15, 0.28, 0.34], "in the order of the tokens, please"),
            ([0, 0, 0, 0.5], "not right at position 0, 1, 2"),
            ([float("nan"), 0.28, 0.15, 0.5], "a list of 4 numbers, not [nan"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(check_gae(answer, TOKENS, VALUES, lam=0.5))


class TestMedianBaseline:
    @pytest.fixture
    def check(self) -> Iterator[Callable[[Callable[..., Any]], Answer]]:
        """Register an estimator for one test."""

        def check(fn: Callable[..., Any]) -> Answer:
            ADV_ESTIMATOR_REGISTRY.pop("test_median", None)
            register_adv_est("test_median")(fn)
            return check_median_baseline("test_median")

        yield check
        ADV_ESTIMATOR_REGISTRY.pop("test_median", None)

    @staticmethod
    def medians(rewards: torch.Tensor, index: list[str], of: Callable[..., Any] = torch.median) -> torch.Tensor:
        return torch.stack([of(rewards[[other == uid for other in index]]) for uid in index])

    def test_right(self, check: Any) -> None:
        def own(token_level_rewards, response_mask, index):
            rewards = token_level_rewards.sum(1)
            advantages = (rewards - self.medians(rewards, index))[:, None] * response_mask
            return advantages, advantages

        assert check(own).ok is True
        columns = toy_columns([0, 1, 1, 0], ["a", "a", "b", "b"])
        assert "4 rows of the batch" in check_median_baseline("test_median", columns).says[0]

    def test_open_and_not_registered(self, check: Any) -> None:
        assert check(lambda token_level_rewards: (..., ...)).ok is None
        assert check(lambda token_level_rewards: (token_level_rewards, ...)).ok is None
        assert check(lambda response_mask: (... * response_mask, 0)).ok is None
        assert "no estimator is registered as 'nobody'" in words(check_median_baseline("nobody"))

    def test_one_that_raises_is_told_so(self, check: Any) -> None:
        assert "it raises ZeroDivisionError" in words(check(lambda response_mask: 1 / 0))
        assert "needs the field 'nothing'" in words(check(lambda nothing: None))
        assert "it returns float" in words(check(lambda response_mask: (1.0, 1.0)))
        assert "it returns NoneType" in words(check(lambda response_mask: None))
        assert "it returns NoneType" in words(check(lambda response_mask: (response_mask, None)))
        assert "it returns one tensor: return two" in words(check(lambda response_mask: response_mask))

    def test_whole_and_long_numbers_are_numbers(self, check: Any) -> None:
        def own(token_level_rewards, response_mask, index):
            rewards = token_level_rewards.sum(1)
            advantages = ((rewards - self.medians(rewards, index))[:, None] * response_mask).double()
            return advantages, advantages

        assert check(own).ok is True
        assert "not the reward minus the median" in words(check(lambda response_mask: (response_mask, response_mask)))

    def test_one_that_writes_into_its_columns_does_not_spoil_the_next_try(self, check: Any) -> None:
        def own(token_level_rewards, response_mask, index):
            token_level_rewards.zero_()
            return response_mask * 7.0, response_mask

        assert check(own).ok is False
        columns = toy_columns([0, 1, 1, 0], ["a", "a", "b", "b"])
        check_median_baseline("test_median", columns)
        assert columns["token_level_rewards"].sum() == 2

    @pytest.mark.parametrize(
        ("make", "mistake"),
        [
            (lambda r, t, m, med, mean: r - med, "its shape is [6], expected [6, 3]"),
            (lambda r, t, m, med, mean: (r - med)[:, None] + 0 * m, "tokens under mask 0 must get 0"),
            (lambda r, t, m, med, mean: (r - r.median())[:, None] * m, "your median is over all rows"),
            (lambda r, t, m, med, mean: (r - mean)[:, None] * m, "this is the mean of the group"),
            (lambda r, t, m, med, mean: r[:, None] * m, "no baseline is subtracted"),
            (lambda r, t, m, med, mean: (t - med[:, None]) * m, "these are token rewards minus the median"),
            (lambda r, t, m, med, mean: (med - r)[:, None] * m, "the sign is turned"),
            (lambda r, t, m, med, mean: 7.0 * m, "not the reward minus the median of its group"),
        ],
    )
    def test_wrong(self, check: Any, make: Any, mistake: str) -> None:
        def own(token_level_rewards, response_mask, index):
            rewards = token_level_rewards.sum(1)
            middle, mean = self.medians(rewards, index), self.medians(rewards, index, torch.mean)
            made = make(rewards, token_level_rewards, response_mask, middle, mean)
            return made, made

        assert mistake in words(check(own))


class TestSideBySide:
    def test_two_groups_has_what_every_estimator_asks_for(self) -> None:
        names = [name for name in ADV_ESTIMATOR_REGISTRY if "extra_fields" not in required_fields(name)]
        assert set(side_by_side(two_groups(), *names).advantages) == set(names)

    def test_an_estimator_without_its_field_says_which(self) -> None:
        compared = side_by_side(toy_columns([0, 1]), "grpo", "gae")
        assert set(compared.advantages) == {"grpo"}
        assert "gae needs values" in compared.text()

    def test_settings_reach_the_estimator(self) -> None:
        compared = side_by_side(toy_columns([0, 1]), "grpo", norm_adv_by_std_in_grpo=False)
        assert compared.advantages["grpo"][:, 0].tolist() == [-0.5, 0.5]

    def test_words(self) -> None:
        columns = {**toy_columns([1, float("nan")], ["a", "b"], [[1, 1], [0]]), "values": torch.zeros(2, 2)}
        text = side_by_side(columns, "grpo").text()
        assert "grpo      │ 1.00 │   -" in text  # a row without a token of the model has no number
        assert "nan" in side_by_side(toy_columns([1, float("nan")]), "grpo").text()
        assert "0.12..1 " in side_by_side(two_groups(), "optimal_token_baseline").text(200)

    def test_pictures(self) -> None:
        grid = heat_map(side_by_side(two_groups(), "grpo", "rloo")).axes[0]
        assert grid.images[0].get_array().shape == (2, 8)
        assert [label.get_text() for label in grid.get_xticklabels()] == ["0", "0", "0", "1", "0.5", "1", "1", "1"]
        lines = plot_success({"grpo": {"adv_estimator": "grpo"}}, n=4).axes[0].lines
        assert [round(float(y), 2) for y in lines[0].get_ydata()] == [1.5, 0.87, 0.5]


def test_toy_columns_put_the_reward_on_the_last_token() -> None:
    columns = toy_columns([1, 2], masks=[[1], [1, 0, 1]])
    assert columns["token_level_rewards"].tolist() == [[1, 0, 0], [0, 0, 2]]
    assert columns["response_mask"].tolist() == [[1, 0, 0], [1, 0, 1]]
    assert columns["uid"] == ["a", "a"]
