"""Where verl 0.9.1 and TransferQueue 0.1.11 have what crosswalks, contract and docstrings name: file, name, lines.

    python -m tests.crosswalk.verl_places            does the stored list still say what the installed packages have?
    python -m tests.crosswalk.verl_places --write    store it anew, after a table or the contract has changed

The packages are parsed, not imported. Without them the tests hold the tables against the stored list alone.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kitlib.contract import STAGES
from tests.crosswalk.tables import ROOT, Has, Place, places, rows

LIST = Path(__file__).with_name("verl_0_9_1_places.txt")
VERSIONS = {"verl": "0.9.1", "TransferQueue": "0.1.11"}
Lines = tuple[int, int]  # first and last, of the `def`, the `class` or the assignment


def stored() -> dict[Place, Lines]:
    """The list as it was written: `file [name first last]` on a line."""
    found = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        file, name, first, last = [*line.split(), "", "0", "0"][:4]
        found[file, name] = int(first), int(last)
    return found


def missing_packages() -> str:
    """What is not installed in the version that the list is about; empty if nothing."""
    have = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    return ", ".join(f"{name} {version}" for name, version in VERSIONS.items() if have.get(name) != version)


def installed() -> dict[Place, Lines]:
    """Every place that is named, as the installed packages have it. Raises LookupError with all that they lack."""
    found, unknown = {}, []
    for what, place in named(lambda file, name: lines_of(file, name) is not None):
        if place is None:
            unknown.append(what)
        else:
            found[place] = lines_of(*place) or (0, 0)
    if unknown:
        raise LookupError("not in the installed packages: " + "; ".join(unknown))
    return dict(sorted(found.items()))


def named(has: Has) -> Iterator[tuple[str, Place | None]]:
    """Each place of verl that a table, the contract or a docstring names: (who names what, the place)."""
    for table in rows():
        for name, place in places([(row.there, row.here) for row in table], has):
            yield f"{table[0].where}: {name}", place
    for stage in STAGES.values():
        file, name = stage.verl.partition(" (line")[0].split(", ")
        yield f"stage {stage.name}: {file}, {name}", (file, name) if has(file, name) else None
    for module, file in files_in_docstrings():
        found = next((path for path in (file, f"transfer_queue/{file}") if has(path, "")), None)
        yield f"{module}: {file}", found and (found, "")


def files_in_docstrings() -> Iterator[tuple[str, str]]:
    """Every `folder/file.py` that the docstring of a module names and that is none of ours."""
    for path in sorted((ROOT / "kitlib").rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for file in re.findall(r"\b\w+(?:/\w+)*/\w+\.py\b", docstring):
            if not (ROOT / file).exists() and not (ROOT / "kitlib" / file).exists():
                yield str(path.relative_to(ROOT)), file


def lines_of(file: str, name: str) -> Lines | None:
    """Lines of a name in a file of the packages; (0, 0) for the file or folder itself; None if it is not there."""
    root = _folder("transfer_queue").parent if file.startswith("transfer_queue/") else _folder("verl")
    path = root / file
    if not file or not path.exists():
        return None
    return _names(path).get(name) if name else (0, 0)


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


@cache
def _names(path: Path) -> dict[str, Lines]:
    return dict(_defined(ast.parse(path.read_text(encoding="utf-8")), "")) if path.is_file() else {}


def _defined(scope: ast.AST, prefix: str) -> Iterator[tuple[str, Lines]]:
    """Functions, classes and their members, and what is assigned there or to `self`."""
    for node in ast.iter_child_nodes(scope):
        lines = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield f"{prefix}{node.name}", lines
        if isinstance(node, ast.ClassDef):
            yield from _defined(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and prefix:
            stores = (part for part in ast.walk(node) if isinstance(part, ast.Attribute))
            own = (part for part in stores if isinstance(part.ctx, ast.Store) and ast.unparse(part.value) == "self")
            yield from ((f"{prefix}{part.attr}", (part.lineno, part.lineno)) for part in own)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((f"{prefix}{name.id}", lines) for name in targets if isinstance(name, ast.Name))


def main() -> None:
    if lacking := missing_packages():
        raise SystemExit(f"needs {lacking}")
    found = installed()
    if "--write" in sys.argv:
        lines = (f"{file} {name} {first} {last}" if name else file for (file, name), (first, last) in found.items())
        LIST.write_text("\n".join(lines) + "\n", encoding="utf-8")
    differing = found.items() ^ stored().items()
    print(f"not in step: {sorted(differing)}" if differing else "the stored list is what is installed")


if __name__ == "__main__":
    main()
