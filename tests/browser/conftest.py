"""One JupyterLab and one Chromium for all browser tests, one kernel for those of the widgets; skipped with the reason
where they are missing.

A picture of the page after each test lies in the temporary folder of the run (`pytest --basetemp=DIR` to choose it).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.lab import CHROMIUM_FLAGS, Lab, Notebook, chromium, why_not

PREPARE = """
import itertools, sys, threading, time, torch
from pathlib import Path
from kitlib.inspector.widgets import HtmlInspector, Inspector
from kitlib.transfer_queue import TransferQueue, acting_as, take_snapshot, watch
from tests.inspector.queues import board_queue, marker, tag
"""
CLOSE_ALL = """
from kitlib.inspector.widgets import html_inspector, inspector
for shown in [*inspector._on_a_page, *html_inspector._on_a_page]:
    shown.close()
until = time.monotonic() + 60
while [thread for thread in threading.enumerate() if thread.name.startswith("kitlib")]:
    assert time.monotonic() < until, "a thread goes on"
    time.sleep(0.05)
"""


@pytest.fixture(scope="package")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="package")
def lab_and_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Any]]:
    if reason := why_not():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    lab = Lab(tmp_path_factory.mktemp("lab"))
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), headless=True, args=CHROMIUM_FLAGS)
            yield lab, browser
            browser.close()
    finally:
        lab.close()


@pytest.fixture(scope="package")
def shared_notebook(lab_and_browser: tuple[Lab, Any]) -> Notebook:
    made = Notebook(*lab_and_browser, "browser_tests")
    made.run(PREPARE)
    return made


@pytest.fixture
def notebook(shared_notebook: Notebook, pictures: Path, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """The open notebook without cells; afterwards no error in the page, no widget open, no thread of ours."""
    shared_notebook.errors.clear()
    shared_notebook.clear()
    yield shared_notebook
    try:
        shared_notebook.page.screenshot(path=pictures / f"{request.node.name}.png")
        shared_notebook.run(CLOSE_ALL)
    except BaseException:
        shared_notebook.renew()  # a page that hangs must not take the next test with it
        shared_notebook.run(PREPARE)
        raise
    assert shared_notebook.errors == []
