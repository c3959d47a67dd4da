"""The notebooks turn red when the library no longer does what they teach."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell

from tests.notebooks.reading import NAMES, PATHS, read
from tests.notebooks.running import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BY_NAME = dict(zip(NAMES, PATHS, strict=True))


def mutations_of(name: str) -> list[FunctionType]:
    """The mutations of a notebook, in the order of their module (none without one); see tests/notebooks/mutations."""
    where = f"tests.notebooks.mutations.m{name[:2]}"
    if find_spec(where) is None:
        return []
    module = import_module(where)
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
def test_red_when_its_lesson_is_false(name: str, mutation: FunctionType, tmp_path: Path, kernels: Any) -> None:
    notebook = read(BY_NAME[name])
    notebook.cells.insert(0, new_code_cell(f"{inspect.getsource(mutation)}\n{mutation.__name__}()"))
    with pytest.raises(CellExecutionError) as failure:
        run(notebook, tmp_path, kernels)
    assert "def " + mutation.__name__ not in str(failure.value), "the mutation itself has failed"
