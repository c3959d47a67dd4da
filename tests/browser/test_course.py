"""Every notebook in a real JupyterLab: `Run All` ends well, says so itself, and leaves no error in the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser.lab import READY, SAVE, SECONDS, TOKEN, Lab
from tests.notebooks.reading import NAMES, PATHS

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1200)]
RUN_ALL_SECONDS = 600
# Started and not awaited: an evaluate that waits for cells would wait without end if one of them did.
RUN_ALL = """() => {
  window.kitlibRun = undefined;
  window.jupyterapp.commands.execute('notebook:run-all-cells').then(
    (ended) => { window.kitlibRun = String(ended); }, (error) => { window.kitlibRun = String(error); });
}"""


@pytest.fixture(scope="module")
def page(lab_and_browser: tuple[Lab, Any]) -> Iterator[Any]:
    """One page for all notebooks; `page.errors` are those of the page."""
    _lab, browser = lab_and_browser
    opened = browser.new_page(viewport={"width": 1500, "height": 1100})
    opened.set_default_timeout(SECONDS * 1000)
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    yield opened
    opened.close()


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_run_all_ends_well(path: Path, lab_and_browser: tuple[Lab, Any], page: Any, pictures: Path) -> None:
    lab, _browser = lab_and_browser
    page.errors.clear()
    shutil.copy(path, lab.notebooks)
    try:
        page.goto(f"{lab.base}/lab/tree/{path.name}?token={TOKEN}&reset")
        page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell", state="attached")
        page.evaluate(READY)
        page.evaluate(RUN_ALL)
        page.wait_for_function("() => window.kitlibRun !== undefined", timeout=RUN_ALL_SECONDS * 1000)
        ended = page.evaluate("() => window.kitlibRun")
        page.screenshot(path=pictures / f"{path.stem}.png")
        page.evaluate(SAVE)
    finally:
        lab.end_kernels()
    cells = [cell for cell in nbformat.read(lab.notebooks / path.name, as_version=4).cells if cell.cell_type == "code"]
    raised = [output.evalue for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert (ended, raised) == ("true", [])
    assert all(cell.execution_count for cell in cells)
    (closing,) = [cell for cell in cells if "runner.close()" in cell.source][-1:]
    assert any(output.output_type == "stream" and output.name == "stdout" for output in closing.outputs)
    assert page.errors == []
