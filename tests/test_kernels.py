"""What the kernels of the tests are told: no port, and a path that is short enough and nobody else's."""

from __future__ import annotations

from pathlib import Path

import jupyter_client
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.kernels import PATIENCE, LocalKernelManager, use_for_every_notebook

OWN_SOCKETS = "from ipykernel.kernelapp import IPKernelApp as App; print(App.instance().transport, App.instance().ip)"


def test_a_client_without_a_choice_starts_a_kernel_without_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jupyter_client, "AsyncKernelManager", jupyter_client.AsyncKernelManager)  # put back at the end
    use_for_every_notebook()
    notebook = new_notebook(cells=[new_code_cell(OWN_SOCKETS)])
    NotebookClient(notebook, kernel_name="python3", **PATIENCE).execute()
    transport, path = notebook.cells[0].outputs[0].text.split()
    assert transport == "ipc" and len(path) < 100
    assert not list(Path(path).parent.glob(f"{Path(path).name}*")), "its sockets are gone with it"


def test_each_has_a_path_of_its_own() -> None:
    first, second = LocalKernelManager(), LocalKernelManager()
    assert first.ip != second.ip and Path(first.ip).parent == Path(second.ip).parent
