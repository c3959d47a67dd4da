"""The notebooks do what they say: run from anywhere, twice in one kernel, quietly, with every exercise solved; and
they turn red when the library no longer does what they teach.
"""

from __future__ import annotations

import os
from pathlib import Path
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


# What the library would have to do wrong, and which notebook must notice.
MUTATIONS = {
    "a get delivers fields that some rows lack": (
        "01_open_the_queue",
        """
        import numpy as np
        from kitlib.transfer_queue.controller import Controller
        Controller.ready_fields = lambda self, indexes: sorted(
            name for name, column in self.columns.items() if np.any(self.codes[indexes, column] > 0)
        )
        """,
    ),
    "a tag put replaces the tag": (
        "01_open_the_queue",
        """
        from kitlib.transfer_queue.controller import Controller
        Controller.merge_tags = lambda self, partition_id, keys, tags: self.partitions[partition_id].tags.update(
            zip(keys, map(dict, tags))
        )
        """,
    ),
    "every advantage is zero": (
        "00_run_one_step",
        """
        from kitlib.trainer import stages
        original = stages.compute_advantage_for_multi_trajectories
        stages.compute_advantage_for_multi_trajectories = lambda *a, **k: tuple(0 * x for x in original(*a, **k))
        """,
    ),
    "the server keeps its first weights": (
        "00_run_one_step",
        """
        from kitlib.rollout import CheckpointEngineManager
        CheckpointEngineManager.update_weights = lambda self, global_steps=None: None
        """,
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_red_when_its_lesson_is_false(mutation: str, tmp_path: Path) -> None:
    name, code = MUTATIONS[mutation]
    notebook = read(BY_NAME[name])
    lines = [line[8:] for line in code.strip("\n").splitlines()]
    notebook.cells.insert(0, new_code_cell("\n".join(lines)))
    with pytest.raises(CellExecutionError):
        run(notebook, tmp_path)


def is_code(cell: Any) -> bool:
    return cell.cell_type == "code"


def text_of(cell: Any) -> str:
    return "\n".join(output.data.get("text/plain", "") for output in cell.outputs if "data" in output)


def stderr_of(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.get("name") == "stderr")
