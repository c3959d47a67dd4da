"""A warm kernel is a fresh kernel: nothing of ours is imported, nothing is shared, and it ends with its manager."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from tests.notebooks.running import printed_by, run
from tests.notebooks.warm import Nursery

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def said(source: str, folder: Path, kernels: Any) -> str:
    """What a cell prints in a kernel of its own."""
    notebook = new_notebook(cells=[new_code_cell(source)])
    return printed_by(run(notebook, folder, kernels).cells[0]).strip()


def test_torch_is_there_and_nothing_of_kitlib(tmp_path: Path, kernels: Any) -> None:
    modules = said("import sys; print(*sys.modules)", tmp_path, kernels).split()
    assert "torch" in modules
    assert not [name for name in modules if name.split(".")[0] == "kitlib"]


def test_it_stands_where_it_was_told_to_and_finds_kitlib(tmp_path: Path, kernels: Any) -> None:
    where, found = said("import os, kitlib; print(os.getcwd(), kitlib.__file__)", tmp_path, kernels).split()
    assert Path(where) == tmp_path
    assert Path(found).parts[-2:] == ("kitlib", "__init__.py")


def test_two_kernels_share_nothing(tmp_path: Path, kernels: Any) -> None:
    source = "import os, random, numpy; numpy.spoilt = hasattr(numpy, 'spoilt'); "
    source += "print(os.getpid(), random.random(), numpy.random.rand(), numpy.spoilt)"
    one, other = (said(source, tmp_path, kernels).split() for _ in range(2))
    assert all(a != b for a, b in zip(one[:3], other[:3], strict=True))
    assert one[3] == other[3] == "False"


def test_an_error_in_a_cell_is_one(tmp_path: Path, kernels: Any) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        said("1 / 0", tmp_path, kernels)


def test_no_kernel_outlives_its_manager(tmp_path: Path, kernels: Any, nursery: Nursery) -> None:
    pid = int(said("import os; print(os.getpid())", tmp_path, kernels))
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert nursery.process.poll() is None
