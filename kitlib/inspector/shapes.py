"""Say what values look like without reading them: dtype, shape and bytes of many rows in a few characters.

The notation of a column: J[11..16] is one tensor a row, 11 to 16 long; J[3, 5..8] has a second dim; a scalar is one
number a row. Bytes of Python objects are those of the object itself, not of what it refers to
(kitlib.transfer_queue.Cell).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kitlib.transfer_queue import Cell, PartitionSnapshot


def describe_cells(cells: Iterable[Cell]) -> str:
    """`float32 J[11..16]`, `int64 scalar`, `dict`; several kinds in one column are joined by a bar."""
    kinds: dict[tuple[str, str, int], list[tuple[int, ...]]] = {}
    for cell in cells:
        kinds.setdefault((cell.dtype, cell.layout, len(cell.shape)), []).append(cell.shape)
    return " | ".join(_kind(dtype, layout, shapes) for (dtype, layout, _), shapes in kinds.items())


def _kind(dtype: str, layout: str, shapes: Sequence[tuple[int, ...]]) -> str:
    if layout != "row":
        return f"{dtype} scalar" if layout == "scalar" else dtype
    dims = [sorted(set(lengths)) for lengths in zip(*shapes, strict=True)]
    return f"{dtype} J[{', '.join(str(d[0]) if len(d) == 1 else f'{d[0]}..{d[-1]}' for d in dims)}]"


def column_cells(partition: PartitionSnapshot, positions: Sequence[int], field: str) -> list[Cell]:
    """The distinct descriptions of a field on some rows; rows without it are left out."""
    codes = np.unique(partition.codes[list(positions), partition.fields.index(field)])
    return [partition.cells[code] for code in codes if code]


def num_bytes(partition: PartitionSnapshot, positions: Sequence[int]) -> int:
    """Bytes of everything that some rows hold."""
    sizes = np.array([cell.num_bytes for cell in partition.cells])  # [num_cells]; entry 0 is "absent", 0 bytes
    return int(sizes[partition.codes[list(positions)]].sum())


def size_text(size: int) -> str:
    """`612 bytes`, `310 KB`, `1.3 MB` (powers of 1,000)."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}" if size < 10 * scale else f"{size / scale:.0f} {unit}"
    return f"{size} bytes"
