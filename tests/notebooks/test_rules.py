"""The rules that every notebook keeps, checked on the files: no cell is run here."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.notebooks.reading import NAMES, PATHS, ROOT, is_exercise, minutes_stated, read, solution_in

MAX_CELLS, MAX_LINES = 59, 12
LAST = 13  # the number of the last notebook: 00 to 13, without a gap
ADDRESS = r"https?:|ftp:|\bwww\.|(?<![\w:/.])//[a-z0-9-]+\."
FORBIDDEN_IN_CODE = {
    "an absolute path": r"""["'](/|~/|[A-Z]:\\)""",
    "a shell or pip line": r"(?m)^\s*[!%]",
    "the date": r"\bdatetime\b|\btime\.(time|localtime|gmtime|strftime|ctime)\b|\bfrom time import\b",
    "a question to whoever sits there": r"\binput\(",
}


@pytest.fixture(params=PATHS, ids=NAMES)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def notebook(path: Path) -> Any:
    return read(path)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def prose(notebook: Any) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def test_there_are_notebooks_each_with_its_number() -> None:
    assert NAMES
    assert [name[:2] for name in NAMES] == [f"{number:02d}" for number in range(LAST + 1)]
    assert all(re.fullmatch(r"\d\d(_[a-z0-9]+){2,}", name) for name in NAMES)


def test_valid_and_stripped(notebook: Any) -> None:
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None
    assert notebook.metadata.kernelspec.name == "python3"
    assert [cell.id for cell in notebook.cells] == [str(number) for number in range(len(notebook.cells))]


def test_length(notebook: Any) -> None:
    assert len(notebook.cells) <= MAX_CELLS
    for cell in code_cells(notebook):
        num_lines = len(cell.source.splitlines())
        assert 1 <= num_lines <= MAX_LINES, cell.source


def test_the_first_cells_say_what_it_is(path: Path, notebook: Any) -> None:
    first, second = notebook.cells[:2]
    assert first.source.startswith(f"# {path.stem[:2]} · ")
    assert "**Question.**" in first.source
    assert re.search(r"About \d+ minutes? on 2 CPU cores", first.source)
    assert "Difficulty" in first.source
    assert "roadmap(" in second.source


def test_prose_stands_between_code(notebook: Any) -> None:
    """Two code cells in a row are allowed once in the notebook's closing checks, nowhere else."""
    cells = notebook.cells
    pairs = [(a, b) for a, b in pairwise(cells) if a.cell_type == b.cell_type == "code"]
    assert all(any(line.startswith("assert") for line in b.source.splitlines()) for _, b in pairs)


def test_code_is_plain(notebook: Any) -> None:
    for cell in code_cells(notebook):
        tree = ast.parse(cell.source)
        if not is_exercise(cell):
            definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try)
            assert not [node for node in ast.walk(tree) if isinstance(node, definitions)], cell.source
        for what, pattern in FORBIDDEN_IN_CODE.items():
            assert not re.search(pattern, cell.source), f"{what} in:\n{cell.source}"
        tags = cell.metadata.get("tags", [])
        assert set(tags) <= {"exercise"}, f"tags {tags}"


def test_no_external_address(path: Path, notebook: Any) -> None:
    """In code, prose, metadata or attachments: the course is read without a network."""
    for cell in notebook.cells:
        assert not re.search(ADDRESS, cell.source), cell.source
    assert not re.search(ADDRESS, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", ["https://x.org", "see www.x.org", "<img src='//cdn.x.org/a.js'>", "ftp://x"])
def test_what_an_external_address_is(text: str) -> None:
    assert re.search(ADDRESS, text)


@pytest.mark.parametrize("text", ["7 // 2", "a//b.c", "kitlib/lessons//x", "http is a protocol", "rows//2.0"])
def test_what_an_external_address_is_not(text: str) -> None:
    assert not re.search(ADDRESS, text)


def test_links_lead_to_notebooks_that_exist(path: Path, notebook: Any) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(notebook)):
        assert (path.parent / target).exists(), target


def test_the_end_leads_to_the_next_notebook(path: Path, notebook: Any) -> None:
    following = PATHS[PATHS.index(path) + 1 :][:1]
    assert all(f"]({one.name})" in prose(notebook).split("**Left out here:**")[-1] for one in following)


def test_the_readme_lists_every_notebook_in_order_with_its_minutes() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d\d)\]\(notebooks/(\w+)\.ipynb\) \| .+\? \| (\d+) \|$", readme, re.M)
    assert rows == [(path.stem[:2], path.stem, str(minutes_stated(read(path)))) for path in PATHS]


def test_every_exercise_is_open_and_has_a_solution(notebook: Any) -> None:
    exercises = [number for number, cell in enumerate(notebook.cells) if is_exercise(cell)]
    assert exercises
    for number in exercises:
        assert "..." in notebook.cells[number].source
        assert solution_in(notebook.cells[number + 1]), notebook.cells[number].source
    open_cells = [cell for cell in code_cells(notebook) if re.search(r"= \.\.\.", cell.source)]
    assert all(is_exercise(cell) for cell in open_cells)


def test_it_ends_by_looking_for_itself(notebook: Any) -> None:
    """nbmake stays green when a background task dies: the notebook asserts, asks the ledger and closes the runner."""
    closing = "\n".join(cell.source for cell in code_cells(notebook)[-4:])
    assert closing.count("assert ") >= 5
    assert "ledger.raise_if_failed()" in closing
    assert "not ledger.running()" in closing
    assert "runner.close()" in closing


def test_it_answers_the_three_questions(notebook: Any) -> None:
    text = prose(notebook)
    for words in ("## Three questions", "The same place in verl", "**Left out here:**"):
        assert words.lower() in text.lower(), words
