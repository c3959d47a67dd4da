"""Where the shipped data lies: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from kitlib.errors import KitError

_PACKAGE = Path(__file__).resolve().parent
_ROOTS = (_PACKAGE.parent / "data", _PACKAGE / "_data")


class DataNotFoundError(KitError, FileNotFoundError):
    """A shipped file that is not there."""


def data_path(name: str) -> Path:
    """Path of a shipped data file or folder, for example `data_path("mult_tool/train.parquet")`.

    Raises DataNotFoundError that names the file and the folders that were searched.
    """
    for root in _ROOTS:
        if (root / name).exists():
            return root / name
    raise DataNotFoundError(
        f"shipped data {name!r} not found under {' or '.join(map(str, _ROOTS))}; "
        "`python -m kitlib.lessons.make_data` makes the shipped data again"
    )
