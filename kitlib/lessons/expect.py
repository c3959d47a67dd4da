"""Errors that a notebook shows on purpose, and log lines that it keeps.

The tag `raises-exception` would let a cell pass whatever it raises, and a bare try would let it pass when nothing is
raised. `expect_error` does neither: it prints the message of the expected error and fails in all other cases.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kitlib.errors import KitError


class LessonError(KitError, AssertionError):
    """What a notebook says about the library is not what the library does."""


@dataclass
class Caught:
    """The error that was raised inside the block; None before that."""

    error: BaseException | None = None


@contextmanager
def expect_error(error: type[Exception], saying: str = "", below: Path | None = None) -> Iterator[Caught]:
    """Run a block that must raise `error` with `saying` in its message, and print the message.

        with expect_error(MissingFieldsError, saying="rm_scores") as caught:
            strict_get(tq, batch, ["rm_scores"])

    below: paths in this folder are printed from it on, so that a temporary folder has no name in the output.
    Another error passes through. Raises LessonError when nothing is raised or the message does not have the words.
    """
    caught = Caught()
    try:
        yield caught
    except error as raised:
        if saying not in str(raised):
            raise LessonError(f"expected a message with {saying!r}, and it is: {raised}") from raised
        caught.error = raised
        text = str(raised) if below is None else str(raised).replace(f"{below}{os.sep}", "")
        print(f"{type(raised).__name__}: {text}")
        return
    raise LessonError(f"expected {error.__name__}, and nothing was raised")


@contextmanager
def captured_log(name: str = "kitlib") -> Iterator[list[str]]:
    """Keep the warnings and errors that are logged below `name` in a list, instead of printing them."""
    lines: list[str] = []
    logger, handler = logging.getLogger(name), logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
