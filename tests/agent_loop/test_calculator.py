"""The calculator: right where Python is right, and never more than a line of text where the model writes nonsense."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitlib.agent_loop.calculator import calculator, evaluate
from tests.agent_loop.fakes import TOKENIZER


def calculate(expression: object) -> str:
    return asyncio.run(calculator(expression))


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12*59", "708"),
        (" 12 * 59 ", "708"),
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("-7//2", "-4"),
        ("7%3", "1"),
        ("2**10", "1024"),
        ("-2**2", "-4"),
        ("+5--3", "8"),
        ("6/2", "3"),
        ("10/4", "2.5"),
        ("1/3", "0.333333333333"),
        (".5+1.", "1.5"),
        ("9" * 30, "9" * 30),
        ("2**-1", "0.5"),
    ],
)
def test_values(expression: str, result: str) -> None:
    assert calculate(expression) == result


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1/0", "division by zero"),
        ("5%0", "division by zero"),
        ("0**-1", "division by zero"),
        ("9**9**9", "too large"),
        ("9" * 31, "too large"),
        ("10**31", "too large"),
        ("99999**99999", "too large"),
        ("(-8)**.5", "root of a negative number"),
        ("1" + "+1" * 60, "too long"),
        ("12*", "not an expression"),
        ("", "not an expression"),
        ("   ", "not an expression"),
        ("12*59=", "not an expression"),
        ("(" * 40 + "1", "not an expression"),
        ("1,2", "not an expression"),
        ("()", "not an expression"),
        ("5(3)", "not an expression"),
        ("007", "not an expression"),
        ("__import__('os')", "not an expression"),
        ("1e400", "not an expression"),
        ("٣+٣", "not an expression"),
        (None, "not an expression"),
        ([1], "not an expression"),
    ],
)
def test_nonsense_is_answered_in_words(expression: object, reason: str) -> None:
    assert calculate(expression).startswith(f"error: {reason}")


def test_error_texts_are_in_the_words_of_the_shipped_tokenizer() -> None:
    for expression in ("1/0", "9**9**9", "12*", "x", "(-8)**.5", "1" * 101):
        message = calculate(expression)
        assert len(TOKENIZER.encode(message, add_special_tokens=False)) <= 32
        assert TOKENIZER.decode(TOKENIZER.encode(message, add_special_tokens=False)) == message


@given(st.text(alphabet="0123456789+-*/%(). ", max_size=100))
def test_any_text_of_its_alphabet_gives_a_short_answer(expression: str) -> None:
    answer = calculate(expression)
    assert len(answer) < 80
    assert answer.startswith("error: ") or math.isfinite(float(answer))


@given(st.integers(-99, 99), st.integers(-99, 99), st.sampled_from("+-*"))
def test_integers_agree_with_python(a: int, b: int, operator: str) -> None:
    expected = {"+": a + b, "-": a - b, "*": a * b}[operator]
    assert evaluate(f"({a}){operator}({b})") == expected
