"""JupyterLab and a headless Chromium, for tests and for bench/widget.py.

One server and one browser serve all tests of a session; a test gets its own notebook, kernel and page. Settings,
workspaces and runtime files lie in a folder of their own, so nothing of the reader's Jupyter is touched.

Traps that this file steps around: "Run all" from the menu is lost while a kernel starts, so cells are run by command
once the session is ready; `page.evaluate` has no timeout of its own, so nothing that may hang is awaited in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from textwrap import dedent
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "kitlib"
NUM_PORTS = 5
SECONDS = 120  # for anything that a page does, on a machine that is busy
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
ADD_CELL = """(source) => {
  const { sharedModel } = window.jupyterapp.shell.currentWidget.content.model;
  sharedModel.addCell({ cell_type: 'code', source });
  return sharedModel.cells.length - 1;
}"""
RUN_CELL = """async (index) => {
  const { content } = window.jupyterapp.shell.currentWidget;
  content.deselectAll();
  content.activeCellIndex = index;
  return await window.jupyterapp.commands.execute('notebook:run-cell');
}"""
CLEAR = """() => {
  const { sharedModel } = window.jupyterapp.shell.currentWidget.content.model;
  sharedModel.deleteCellRange(0, sharedModel.cells.length);
}"""
READY = """async () => {
  await window.jupyterapp.restored;
  await window.jupyterapp.shell.currentWidget.context.sessionContext.ready;
}"""
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save')"
NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'


def chromium() -> str | None:
    """The path of an installed Chromium or Chrome."""
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


def why_not() -> str:
    """Why browser tests cannot run here, "" if they can."""
    missing = [name for name in ("playwright", "jupyterlab", "anywidget") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: pip install kitlib[notebooks,dev]"
    return "" if chromium() else f"no Chromium on this machine (looked for {', '.join(CHROMIUM_NAMES)})"


class Lab:
    """A running JupyterLab whose notebooks lie in `folder / nb`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notebooks = folder / "nb"
        self.notebooks.mkdir(parents=True)
        news = folder / "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
        news.parent.mkdir(parents=True)
        news.write_text(NO_NEWS)
        self._runtime = tempfile.TemporaryDirectory(prefix="kitlib-")  # sockets of kernels: their paths must be short
        if not any(self._start() for _ in range(NUM_PORTS)):  # another process may take a port that was free just now
            raise RuntimeError(f"JupyterLab did not start:\n{(folder / 'lab.log').read_text()[-2000:]}")

    def _start(self) -> bool:
        """Start the server on a free port; False if it has ended before it answered."""
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
        command += ["--ServerApp.port_retries=0", "--allow-root", f"--ServerApp.root_dir={self.notebooks}"]
        command += [f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"]
        command += ["--KernelManager.transport=ipc"]  # no kernel can lose its port
        with (self.folder / "lab.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, env=self._environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        return self._is_up()

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        own = {"JUPYTER_CONFIG_DIR": str(self.folder / "config"), "JUPYTER_RUNTIME_DIR": self._runtime.name}
        own |= {"JUPYTER_DATA_DIR": str(self.folder / "data"), "IPYTHONDIR": str(self.folder / "ipython")}
        own |= {"JUPYTERLAB_SETTINGS_DIR": str(self.folder / "settings")}
        own |= {"JUPYTERLAB_WORKSPACES_DIR": str(self.folder / "workspaces")}
        return {**os.environ, **own, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def _is_up(self) -> bool:
        """Wait for an answer of the server; False if it has ended."""
        while self._process.poll() is None:
            try:
                self.api("GET", "status")
            except OSError:
                time.sleep(0.2)
            else:
                return True
        return False

    def api(self, method: str, path: str) -> Any:
        """One call of the server's REST interface."""
        request = urllib.request.Request(f"{self.base}/api/{path}?token={TOKEN}", method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def end_kernels(self) -> None:
        """Stop every kernel: they outlive their page."""
        for session in self.api("GET", "sessions"):
            self.api("DELETE", f"sessions/{session['id']}")

    def close(self) -> None:
        """Stop the server with everything that it started."""
        self.end_kernels()
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=SECONDS)
        self._runtime.cleanup()


class Notebook:
    """An empty notebook, open in a page of the browser. Cells are appended and run."""

    def __init__(self, lab: Lab, browser: Any, name: str) -> None:
        self.lab, self.name = lab, name
        notebook = nbformat.v4.new_notebook()
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.path)
        self.errors: list[str] = []
        self._browser = browser
        self.page: Any = None
        self.renew()

    @property
    def path(self) -> Path:
        """The file."""
        return self.lab.notebooks / f"{self.name}.ipynb"

    def renew(self) -> None:
        """A fresh page and a fresh kernel, whatever became of those before."""
        if self.page is not None:
            self.close()
        self.page = self._browser.new_page(viewport={"width": 1500, "height": 1100})
        self.page.set_default_timeout(SECONDS * 1000)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.open()

    def open(self) -> None:
        """Load the page and wait for the kernel."""
        self.page.goto(f"{self.lab.base}/lab/tree/{self.name}.ipynb?token={TOKEN}&reset")
        self.page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook", state="attached")
        self.page.evaluate(READY)

    def run(self, source: str) -> int:
        """Append a cell and run it to its end; returns its number. AssertionError if it raises."""
        index = self.page.evaluate(ADD_CELL, dedent(source).strip())
        assert self.page.evaluate(RUN_CELL, index), f"the cell raised:\n{source}\n{self.output(index)}"
        return index

    def start(self, source: str) -> int:
        """Append a cell and run it without waiting for its end."""
        index = self.page.evaluate(ADD_CELL, dedent(source).strip())
        self.page.evaluate(f"(index) => {{ ({RUN_CELL})(index); }}", index)
        return index

    def output(self, index: int) -> str:
        """The text of a cell's outputs."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".jp-Cell-outputWrapper").inner_text()

    def value(self, expression: str) -> Any:
        """What an expression is in the kernel, as JSON carries it."""
        return json.loads(self.output(self.run(f"import json; print(json.dumps({expression}))")))

    def save(self) -> Any:
        """Write the file; returns what is in it."""
        self.page.evaluate(SAVE)
        return nbformat.read(self.path, as_version=4)

    def clear(self) -> None:
        """Delete all cells; the kernel keeps its variables."""
        self.page.evaluate(CLEAR)

    def close(self) -> None:
        """Close the page and its kernel."""
        self.page.close()
        self.lab.end_kernels()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
