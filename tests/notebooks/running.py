"""Execute a notebook in a fresh kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nbclient import NotebookClient

from tests.notebooks.reading import ROOT


def run(notebook: Any, folder: Path, kernels: Any) -> Any:
    """Execute in place, with `folder` as working directory. kernels: a class of kernel managers, see warm.py."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", kernel_manager_class=kernels)
    client.execute(cwd=str(folder), env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"})
    return notebook
