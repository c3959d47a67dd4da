"""Blanks are found where they are, and a verdict says what it was given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kitlib.lessons.answers import mistakes, open_answer, right, unanswered


@pytest.mark.parametrize("answers", [(...,), (1, ...), ([1, ...],), ((0, [...]),), ({...},), ([[1], [2, ...]],)])
def test_a_blank_is_left(answers: tuple[Any, ...]) -> None:
    assert unanswered(*answers)


@pytest.mark.parametrize("answers", [(), (None,), ("...",), ([1, 2], {"a"}), (torch.zeros(3),), ({"a": ...},)])
def test_no_blank_is_left(answers: tuple[Any, ...]) -> None:
    assert not unanswered(*answers)


def test_the_three_verdicts() -> None:
    assert [right("so").ok, mistakes(["no"]).ok, open_answer().ok] == [True, False, None]
    assert mistakes(["first", "second"]).says == ("first", "second")
    assert mistakes(["first", "second"]).text().splitlines()[:2] == ["NOT YET  first", "second"]
