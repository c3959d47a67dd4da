"""The notebooks do what they say: run from anywhere, twice in one kernel, quietly, with every exercise solved; and
they turn red when the library no longer does what they teach.
"""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell

from tests.notebooks.reading import NAMES, PATHS, ROOT, is_exercise, read, solve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BY_NAME = dict(zip(NAMES, PATHS, strict=True))


def run(notebook: Any, folder: Path) -> Any:
    """Execute in a fresh kernel whose working directory is `folder`."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    client = NotebookClient(notebook, timeout=240, kernel_name="python3")
    client.execute(cwd=str(folder), env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"})
    return notebook


@pytest.mark.parametrize("name", NAMES)
def test_solved_twice_in_one_kernel_from_elsewhere(name: str, tmp_path: Path) -> None:
    notebook = read(BY_NAME[name])
    num_exercises = solve(notebook)
    once = list(notebook.cells)
    notebook.cells = [*once, *[new_code_cell(cell.source, metadata=cell.metadata) for cell in once if is_code(cell)]]
    run(notebook, tmp_path)
    said = [text_of(cell) for cell in notebook.cells if is_code(cell) and is_exercise(cell)]
    assert len(said) == 2 * num_exercises
    assert all("RIGHT" in text for text in said), said
    noise = [cell.source for cell in notebook.cells if is_code(cell) and stderr_of(cell)]
    assert not noise, f"something was printed to stderr by: {noise}"
    assert not list(tmp_path.iterdir()), "a notebook leaves no file behind"


def mutations_of(name: str) -> list[FunctionType]:
    """The mutations of a notebook, in the order of their module; see tests/notebooks/mutations."""
    module = import_module(f"tests.notebooks.mutations.m{name[:2]}")
    return [thing for word, thing in vars(module).items() if isinstance(thing, FunctionType) and word[0] != "_"]


MUTATIONS = [
    pytest.param(name, mutation, id=f"{name[:2]}-{mutation.__name__}")
    for name in NAMES
    for mutation in mutations_of(name)
]


@pytest.mark.parametrize("name", NAMES)
def test_at_least_two_mutations(name: str) -> None:
    assert len(mutations_of(name)) >= 2


@pytest.mark.parametrize(("name", "mutation"), MUTATIONS)
def test_red_when_its_lesson_is_false(name: str, mutation: FunctionType, tmp_path: Path) -> None:
    notebook = read(BY_NAME[name])
    notebook.cells.insert(0, new_code_cell(f"{inspect.getsource(mutation)}\n{mutation.__name__}()"))
    with pytest.raises(CellExecutionError) as failure:
        run(notebook, tmp_path)
    assert "def " + mutation.__name__ not in str(failure.value), "the mutation itself has failed"


def is_code(cell: Any) -> bool:
    return cell.cell_type == "code"


def text_of(cell: Any) -> str:
    return "\n".join(output.data.get("text/plain", "") for output in cell.outputs if "data" in output)


def stderr_of(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.get("name") == "stderr")
