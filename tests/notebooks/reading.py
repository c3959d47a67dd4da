"""The notebooks of the project as nbformat nodes."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[2]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in PATHS]

EXERCISE = "exercise"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def is_exercise(cell: Any) -> bool:
    return EXERCISE in cell.metadata.get("tags", [])


def solution_in(cell: Any) -> str | None:
    """The code that is folded in a markdown cell, None if there is none."""
    folded = re.search(r"<details><summary>Solution</summary>\s*```python\n(.*?)```.*?</details>", cell.source, re.S)
    return folded[1].rstrip() if folded else None


def solve(notebook: Any) -> int:
    """Put the folded solution into every exercise cell, in place; returns the number of exercises."""
    cells, num_solved = notebook.cells, 0
    for exercise, following in pairwise(cells):
        if is_exercise(exercise):
            solution = solution_in(following)
            assert solution is not None, f"no solution folded below the exercise:\n{exercise.source}"
            exercise.source = solution
            num_solved += 1
    return num_solved


def minutes_stated(notebook: Any) -> int:
    """What the first cell says: `About 2 minutes on 2 CPU cores`."""
    found = re.search(r"About (\d+) minutes? on 2 CPU cores", notebook.cells[0].source)
    assert found, "the first cell states no minutes"
    return int(found[1])
