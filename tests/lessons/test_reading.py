"""What a reader writes is read in any dress, and what is something else is told apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.lessons.reading import (
    meant_by,
    name_of,
    names_of,
    number_of,
    numbers_of,
    whole_number_of,
    whole_numbers_of,
    yes_or_no_of,
)


class TestNumbers:
    @pytest.mark.parametrize(
        "answer", [[1, 0, 0.5], (True, False, 0.5), np.array([1, 0, 0.5]), torch.tensor([1, 0, 0.5])]
    )
    def test_numbers(self, answer: Any) -> None:
        assert numbers_of(answer) == [1.0, 0.0, 0.5]

    def test_numbers_of_tensors_and_of_a_range(self) -> None:
        assert numbers_of([torch.tensor(1), np.float32(0.5)]) == [1.0, 0.5]
        assert numbers_of(torch.tensor([[0, 1]])) == numbers_of(range(2)) == [0.0, 1.0]
        assert numbers_of([]) == []

    @pytest.mark.parametrize("answer", [1, "12", {1, 2}, ["1"], [None], [[1]], [math.nan], [math.inf], {1: 2}])
    def test_no_numbers(self, answer: Any) -> None:
        assert numbers_of(answer) is None


@pytest.mark.parametrize("answer", [2, 2.0, np.int64(2), torch.tensor(2), torch.tensor([2.0])])
def test_a_number(answer: Any) -> None:
    assert number_of(answer) == whole_number_of(answer) == 2


@pytest.mark.parametrize("answer", [True, "2", None, math.nan, [2], torch.tensor([1, 2])])
def test_no_number(answer: Any) -> None:
    assert number_of(answer) is whole_number_of(answer) is None


def test_a_number_that_is_not_whole() -> None:
    assert whole_number_of(2.5) is whole_number_of(math.inf) is None
    assert whole_numbers_of([2, 2.5]) is whole_numbers_of("12") is None


@pytest.mark.parametrize("answer", [[2, 0, 1], (2, 0.0, 1), np.array([2, 0, 1]), torch.tensor([2, 0, 1])])
def test_whole_numbers_in_their_order(answer: Any) -> None:
    assert whole_numbers_of(answer) == [2, 0, 1]


def test_whole_numbers_of_a_set() -> None:
    assert whole_numbers_of({2, 0, 1}) == whole_numbers_of(range(3)) == [0, 1, 2]
    assert whole_numbers_of({}) == whole_numbers_of(set()) == []


@pytest.mark.parametrize(("answer", "read"), [(True, True), (np.False_, False), (torch.tensor(True), True)])
def test_yes_or_no(answer: Any, read: bool) -> None:
    assert yes_or_no_of(answer) is read


@pytest.mark.parametrize("answer", [1, "yes", None])
def test_neither_yes_nor_no(answer: Any) -> None:
    assert yes_or_no_of(answer) is None


@pytest.mark.parametrize("answer", [{"a", "b"}, [" a", "b"], ("b", "a "), {"a": 1, "b": 2}.keys()])
def test_names(answer: Any) -> None:
    assert names_of(answer) == {"a", "b"}


@pytest.mark.parametrize("answer", ["a", {"a": 1}, 3, [1, 2], None])
def test_no_names(answer: Any) -> None:
    assert names_of(answer) is None


def test_one_name() -> None:
    assert name_of(" a") == name_of({"a"}) == name_of(["a "]) == "a"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ab1", ["ab1c"]),
        ("ab", ["ab1c", "ab2d"]),
        ("ab1c_0_0", ["ab1c_0_0"]),
        ("ab_0_0", ["ab1c_0_0"]),
        ("ab_0", []),
        ("_0_0", ["ab1c_0_0"]),
        ("", []),
    ],
)
def test_what_a_short_name_stands_for(name: str, meant: list[str]) -> None:
    assert meant_by(name, ["ab1c", "ab2d", "ab1c_0_0", "ab2d_1_0"]) == meant
