"""The general checks: right answers in any dress, and each planted wrong one named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kitlib.lessons import Answer, check_choice, check_names, check_number, check_order

CHOICES = {"stuck": "the marker says running", "lost": "a lost row has no key", "fine": "a step takes two seconds"}
MISTAKES = {0.433: "that divides by n, and torch.std divides by n - 1", 3: "that counts the marker, too"}
BECAUSE = {("submit", "sample"): "only what was submitted can be sampled"}
STAGES = ["submit", "sample", "update", "clear"]


def words(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


class TestNumber:
    @pytest.mark.parametrize("answer", [0.5, 1 / 2, torch.tensor(0.5), torch.tensor([0.5]), np.float32(0.5), 0.5004])
    def test_right(self, answer: Any) -> None:
        assert check_number(answer, 0.5).ok is True

    def test_whole_numbers_and_a_truth_from_torch(self) -> None:
        assert check_number(32, 32).ok is True
        assert check_number(32.0, torch.tensor(32)).ok is True
        assert check_number(1000.4, 1000).ok is True  # within a thousandth

    def test_what_is_said_when_it_is_right(self) -> None:
        assert check_number(4, 4, right="4 groups of 8").says == ("4 groups of 8",)
        assert check_number(0.25, 0.25).says == ("0.25",)

    def test_open(self) -> None:
        assert check_number(..., 1).ok is None

    @pytest.mark.parametrize(
        ("answer", "truth", "mistake"),
        [
            (0.43301, 0.5, "not 0.43301: that divides by n"),
            (3, 2, "that counts the marker"),
            (-0.5, 0.5, "the size is right and the sign is not"),
            (9, 8, "one too many"),
            (7, 8, "one too few"),
            (0.7, 0.5, "too large"),
            (0.0, 0.5, "too small"),
            (1, 0, "one too many"),
            (float("inf"), 8, "too large"),
            (float("nan"), 8, "the answer is a number"),
            ("8", 8, "the answer is a number"),
            (True, 1, "the answer is a number"),
            (None, 1, "the answer is a number"),
            ([1, 2], 1, "the answer is a number"),
            (torch.tensor([1.0, 2.0]), 1, "the answer is a number"),
        ],
    )
    def test_wrong(self, answer: Any, truth: float, mistake: str) -> None:
        assert mistake in words(check_number(answer, truth, MISTAKES))

    def test_tolerance(self) -> None:
        assert check_number(0.52, 0.5).ok is False
        assert check_number(0.52, 0.5, tolerance=0.05).ok is True


class TestChoice:
    @pytest.mark.parametrize("answer", ["stuck", " stuck ", ["stuck"]])
    def test_right(self, answer: Any) -> None:
        assert check_choice(answer, "stuck", CHOICES).ok is True

    def test_right_says_why(self) -> None:
        answer = check_choice("stuck", "stuck", CHOICES)
        assert answer.ok is True
        assert answer.says == ("the marker says running",)

    def test_open(self) -> None:
        assert check_choice(..., "stuck", CHOICES).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ("lost", "not 'lost': a lost row has no key"),
            ("fine", "a step takes two seconds"),
            ("stack", "'stack' is none of 'stuck', 'lost' or 'fine'"),
            (3, "3 is none of"),
            (["stuck", "lost"], "is none of"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(check_choice(answer, "stuck", CHOICES))

    def test_a_truth_that_is_no_choice_is_a_mistake_of_the_author(self) -> None:
        with pytest.raises(AssertionError, match="'stick' is not among"):
            check_choice("stuck", "stick", CHOICES)


class TestNames:
    @pytest.mark.parametrize(
        "answer",
        [
            {"advantages", "returns"},
            ["returns", "advantages"],
            ("returns ", " advantages"),
            {"returns": 1, "advantages": 2}.keys(),
            np.array(["returns", "advantages"]),
        ],
    )
    def test_right(self, answer: Any) -> None:
        assert check_names(answer, {"advantages", "returns"}).ok is True

    def test_nothing_can_be_right(self) -> None:
        assert check_names(set(), set(), right="nothing").says == ("nothing",)
        assert check_names({}, set()).ok is True

    def test_open(self) -> None:
        assert check_names(..., {"a"}).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ({"advantages"}, "1 name still missing from your answer: look at the last column"),
            ({"advantages", "returns", "values"}, "values: only the critic writes values"),
            ({"advantages", "return"}, "return does not belong here; did you mean returns?"),
            ({"advantages", "returns", "xyz"}, "xyz does not belong here"),
            ("advantages", "the answer is a set of names"),
            ({1}, "the answer is a set of names"),
            ({"advantages": 1}, "the answer is a set of names"),
            (7, "the answer is a set of names"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        checked = check_names(
            answer,
            {"advantages", "returns"},
            {"values": "only the critic writes values"},
            hint="look at the last column",
        )
        assert mistake in words(checked)


class TestOrder:
    def test_right(self) -> None:
        assert check_order(STAGES, STAGES).says == ("submit > sample > update > clear",)
        assert check_order(tuple(STAGES), STAGES, right="yes").says == ("yes",)
        assert check_order([f" {name} " for name in STAGES], STAGES).ok

    def test_open(self) -> None:
        assert check_order(..., STAGES).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            (
                ["sample", "submit", "update", "clear"],
                "sample does not come before submit: only what was submitted can be sampled",
            ),
            (["submit", "update", "sample", "clear"], "update does not come before sample"),
            (["submit", "sample", "update"], "1 name still missing"),
            (["submit", "sample", "update", "cleer"], "did you mean clear"),
            (["submit", "sample", "update", "clear", "clear"], "more than once"),
            (set(STAGES), "a list of names in their order"),
            ("submit", "a list of names in their order"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(check_order(answer, STAGES, BECAUSE))
