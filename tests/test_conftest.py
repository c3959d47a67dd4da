"""The guard of every test: a thread of kitlib that outlives its test turns it red."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

LEAVES_A_THREAD = """
import threading, time

def test_leaves_a_thread():
    threading.Thread(target=time.sleep, args=(0.5,), name="{name}", daemon=True).start()
"""


@pytest.mark.parametrize(("name", "outcome"), [("kitlib-server", {"passed": 1, "errors": 1}), ("other", {"passed": 1})])
def test_a_thread_left_behind_is_an_error(pytester: pytest.Pytester, name: str, outcome: dict[str, int]) -> None:
    guard = Path(__file__).with_name("conftest.py").read_text()
    pytester.makeconftest(guard.replace("GRACE_SECONDS = 2.0", "GRACE_SECONDS = 0.05"))
    pytester.makepyfile(LEAVES_A_THREAD.format(name=name))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio")
    result.assert_outcomes(**outcome)
    if "errors" in outcome:
        result.stdout.fnmatch_lines(["*left threads running: kitlib-server*"])
