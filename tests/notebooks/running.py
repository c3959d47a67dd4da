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
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    for is_last in (False, True):
        client = NotebookClient(notebook, timeout=240, kernel_name="python3", kernel_manager_class=kernels)
        try:
            client.execute(cwd=str(folder), env=environment)
            break
        except RuntimeError as error:  # two kernels that start at one moment may be given one port: no cell has run
            if is_last or "Kernel died before replying to kernel_info" not in str(error):
                raise
    return notebook
