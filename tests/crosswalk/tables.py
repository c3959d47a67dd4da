"""The tables `here | there` of the notebooks and of the README: which file and name each cell means.

In a cell, `a/b.py` opens a file; names after it belong to this file, and a bare name after `Class.method` may belong to
the same class. A file without a slash lies beside the one before it. A cell without a file goes on with the files
above it in its column. "the same name(s)" stands for the names of the other cell. What is not in backticks is prose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
HEADS = ("| here | there |", "| here | verl 0.9.1 |")
README_HEAD = "| verl 0.9.1 | kitlib |"
PACKAGE = "package TransferQueue"  # its files are `transfer_queue/...`

Place = tuple[str, str]  # file or folder, and a name in it or ""
Has = Callable[[str, str], bool]


@dataclass(frozen=True)
class Row:
    """One line of a table, the cells as they are written."""

    where: str
    here: str
    there: str


def rows() -> Iterator[list[Row]]:
    """Every table, as its rows."""
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                for table in tables_in("".join(cell["source"]), HEADS):
                    yield [Row(path.name, here, there) for here, there in table]
    for table in tables_in((ROOT / "README.md").read_text(encoding="utf-8"), (README_HEAD,)):
        yield [Row("README.md", here, there) for there, here in table]


def tables_in(text: str, heads: tuple[str, ...]) -> Iterator[list[tuple[str, str]]]:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line in heads:
            end = next((n for n in range(number, len(lines)) if not lines[n].startswith("|")), len(lines))
            yield [_two_cells(row) for row in lines[number + 2 : end]]


def _two_cells(line: str) -> tuple[str, str]:
    _, left, right, _ = (part.strip() for part in line.split("|"))
    return left, right


def places(cells: list[tuple[str, str]], has: Has) -> Iterator[tuple[str, Place | None]]:
    """What each file and name of a column means: (as written, its place; None if `has` knows none).

    `cells` are (cell, the cell beside it) from top to bottom. A name below no file is asked for as ("", name), too.
    """
    above: list[str] = []
    for cell, beside in cells:
        tokens = _tokens(cell)
        if re.search(r"the same names?\b(?! without)", cell):
            tokens += [token for token in _tokens(beside) if not _is_file(token)]
        files: list[str] = []
        owner = ""
        for token in tokens:
            if _is_file(token):
                place = next(((path, "") for path in _paths(token, files, cell) if has(path, "")), None)
                files += [place[0]] if place else []
            else:
                spellings = (token, f"{owner}.{token}") if owner else (token,)
                candidates = ((file, name) for file in files or [*above[::-1], ""] for name in spellings)
                place = next((place for place in candidates if has(*place)), None)
                owner = token.rpartition(".")[0] or (token if token[:1].isupper() else owner)
            yield token, place
        above += files


def _tokens(cell: str) -> list[str]:
    """What stands in backticks; `@decorated` and `called(...)` are names, too."""
    return [token.removeprefix("@").partition("(")[0] for token in re.findall(r"`([^`]+)`", cell)]


def _is_file(token: str) -> bool:
    return token.endswith((".py", "/"))


def _paths(token: str, before: list[str], cell: str) -> Iterator[str]:
    """Where a file may lie: in the package that the cell names, beside the file before it, or where it says."""
    if PACKAGE in cell:
        yield f"transfer_queue/{token}"
    elif before and "/" not in token:
        yield f"{before[0].rpartition('/')[0]}/{token}"
    yield token
