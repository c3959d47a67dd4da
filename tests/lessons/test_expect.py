"""`expect_error` is green for the expected error alone; a captured log is printed nowhere."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kitlib.errors import KitError
from kitlib.lessons import LessonError, captured_log, expect_error


def test_the_expected_error_is_printed_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with expect_error(ValueError, saying="seven") as caught:
        raise ValueError("not seven")
    assert capsys.readouterr().out == "ValueError: not seven\n"
    assert str(caught.error) == "not seven"


def test_a_subclass_is_shown_under_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    with expect_error(Exception):
        raise KitError("a sentence")
    assert capsys.readouterr().out == "KitError: a sentence\n"


def test_paths_are_printed_from_a_folder_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with expect_error(ValueError, saying=str(tmp_path), below=tmp_path) as caught:
        raise ValueError(f"{tmp_path / 'a' / 'b'} and {tmp_path / 'c'} are gone")
    assert capsys.readouterr().out == f"ValueError: {Path('a') / 'b'} and c are gone\n"
    assert str(tmp_path) in str(caught.error)


def test_red_when_nothing_is_raised() -> None:
    with pytest.raises(LessonError, match="expected ValueError, and nothing was raised"), expect_error(ValueError):
        pass


def test_red_when_the_message_says_something_else() -> None:
    with pytest.raises(LessonError, match="'seven'.*it is: eight"), expect_error(ValueError, saying="seven"):
        raise ValueError("eight")


def test_another_error_passes_through() -> None:
    with pytest.raises(KeyError), expect_error(ValueError):
        raise KeyError("x")


def test_a_captured_log_is_printed_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("kitlib.agent_loop.worker")
    with captured_log() as lines:
        logger.error("one %s", "failed")
        logger.info("not kept")
    assert lines == ["ERROR one failed"]
    assert capsys.readouterr().err == ""
    assert not logging.getLogger("kitlib").handlers
    assert logging.getLogger("kitlib").propagate
