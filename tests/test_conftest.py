"""The guard of every test: a thread of kitlib that outlives its test turns it red."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

LEAVES_A_THREAD = """
import threading
from tests.test_conftest import RELEASE

def test_leaves_a_thread():
    threading.Thread(target=RELEASE.wait, name="{name}", daemon=True).start()
"""
RELEASE = threading.Event()  # what the thread waits for


@pytest.fixture(autouse=True)
def _end_of_the_thread() -> Iterator[None]:
    RELEASE.clear()
    yield
    RELEASE.set()


@pytest.mark.parametrize(("name", "outcome"), [("kitlib-server", {"passed": 1, "errors": 1}), ("other", {"passed": 1})])
def test_a_thread_left_behind_is_an_error(pytester: pytest.Pytester, name: str, outcome: dict[str, int]) -> None:
    guard = Path(__file__).with_name("conftest.py").read_text()
    pytester.makeconftest(guard.replace("GRACE_SECONDS = 60.0", "GRACE_SECONDS = 0.05"))
    pytester.makepyfile(LEAVES_A_THREAD.format(name=name))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio")
    result.assert_outcomes(**outcome)
    if "errors" in outcome:
        result.stdout.fnmatch_lines(["*left threads running: kitlib-server*"])
