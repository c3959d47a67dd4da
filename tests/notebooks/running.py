"""Execute a notebook in a fresh kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nbclient import NotebookClient

from tests.kernels import PATIENCE
from tests.notebooks.reading import ROOT


def run(notebook: Any, folder: Path, kernels: Any) -> Any:
    """Execute in place, with `folder` as working directory. kernels: a class of kernel managers, see warm.py."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    client = NotebookClient(notebook, kernel_name="python3", kernel_manager_class=kernels, **PATIENCE)
    client.execute(cwd=str(folder), env=environment)
    return notebook


def printed_by(cell: Any) -> str:
    """What a cell has printed: on a busy machine one `print` may come in several outputs."""
    return "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
