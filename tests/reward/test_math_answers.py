"""Mathematical answers, with and without math-verify."""

from __future__ import annotations

import pytest

from kitlib.reward import default_compute_score, math_answers
from kitlib.reward.math_answers import has_math_verify, last_boxed, same_answer


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_answers, "has_math_verify", lambda: False)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{7}", "7"),
        (r"\boxed{1} no, \boxed {\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\fbox{a_{b_{c}}}", "a_{b_{c}}"),
        ("7", None),
        (r"\boxed{\frac{1}{2}", None),
    ],
)
def test_the_last_box_counts_and_its_braces_balance(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("7", "7", True),
        (r"\dfrac{1}{2}", r"\frac{1}{2}", True),
        (r" \left( 1, 2 \right) ", "(1,2)", True),
        ("1,234", "1234", True),
        ("90^\\circ", "90", True),
        ("12", "1", False),
        ("1,23", "123", False),
    ],
)
@pytest.mark.usefixtures("without_package")
def test_spellings_that_need_no_package(answer: str, truth: str, same: bool) -> None:
    assert same_answer(answer, truth) is same


@pytest.mark.parametrize("data_source", ["lighteval/MATH", "kitlib/math"])
def test_the_rule_tells_score_accuracy_and_answer(data_source: str) -> None:
    assert default_compute_score(data_source, r"It is \boxed{42}.", "42") == {"score": 1.0, "acc": 1.0, "pred": "42"}
    assert default_compute_score(data_source, "It is 42.", "42") == {"score": 0.0, "acc": 0.0, "pred": ""}


@pytest.mark.skipif(not has_math_verify(), reason="needs math-verify (extra `math`)")
@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("0.5", r"\frac{1}{2}", True),
        ("x+1", "1+x", True),
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        ("0.51", r"\frac{1}{2}", False),
    ],
)
def test_the_package_compares_meanings(answer: str, truth: str, same: bool) -> None:
    assert same_answer(answer, truth) is same


@pytest.mark.skipif(not has_math_verify(), reason="needs math-verify (extra `math`)")
def test_the_package_says_nothing_on_the_way(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It warns once a process that its time limits are off."""
    for module in ("parser", "grader"):
        monkeypatch.setattr(f"math_verify.{module}.TIMEOUT_WARNING_SHOWN", False)
    assert same_answer("0.5", r"\frac{1}{2}")
    assert not caplog.records
