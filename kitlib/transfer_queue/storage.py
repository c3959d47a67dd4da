"""The data plane: a storage unit holds rows x columns and knows nothing else.

No keys, no partitions, no tags, no status: a row is a number (its global index) and the controller alone knows what it
means. TransferQueue 0.1.11: storage/simple_storage.py, StorageUnitData. Left out: the SSD tier. Units of one process
may point to the same block; each has its own rows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kitlib.transfer_queue.blocks import Block


class StorageUnit:
    """For every global index, which block holds which field of it.

    Rows that were written together share one {field: block}; a put to some of them makes a new one for those and
    leaves the old one alone. Values are never changed in place either: rows that a reader fetched a moment ago stay
    what they were. Not thread-safe: TransferQueue holds its lock around every call.
    """

    def __init__(self) -> None:
        self._rows: dict[int, Mapping[str, Block]] = {}

    def put(self, indexes: Sequence[int], blocks: Mapping[str, Block]) -> None:
        """These fields of these rows are in these blocks from now on."""
        merged: dict[int, tuple[Mapping[str, Block], ...]] = {}  # id of what a row had -> (that, what it has now)
        for index in indexes:
            before = self._rows.get(index, NOTHING)
            if id(before) not in merged:
                merged[id(before)] = (before, {**before, **blocks})
            self._rows[index] = merged[id(before)][1]

    def get(self, field: str, indexes: Sequence[int]) -> list[Block]:
        """The blocks that hold one field of these rows; other fields are not touched. KeyError for a cell that is not
        there.
        """
        return [self._rows[index][field] for index in indexes]

    def clear(self, indexes: Sequence[int]) -> None:
        """Drop all fields of these rows."""
        for index in indexes:
            self._rows.pop(index, None)


NOTHING: Mapping[str, Block] = {}


class StorageUnits:
    """Rows spread over several units: row `index` lives in unit `index % num_units`, for ever and for all fields."""

    def __init__(self, num_units: int) -> None:
        self.units = [StorageUnit() for _ in range(num_units)]

    def put(self, indexes: Sequence[int], blocks: Mapping[str, Block]) -> None:
        """Store fields {field: block}; row i of a block belongs to indexes[i]."""
        rows = {index: row for row, index in enumerate(indexes)}
        for block in blocks.values():
            block.rows = rows
        for unit, _, own in self._route(indexes):
            unit.put(own, blocks)

    def get(self, indexes: Sequence[int], fields: Sequence[str]) -> dict[str, tuple[list[Block], list[int]]]:
        """{field: (blocks, row numbers)}: the value of indexes[i] is row numbers[i] of blocks[i]."""
        routes = self._route(indexes)
        columns = {}
        for field in fields:
            found: dict[int, Block] = {}
            for unit, positions, own in routes:
                found.update(zip(positions, unit.get(field, own), strict=True))
            blocks = [found[position] for position in range(len(indexes))]
            columns[field] = (blocks, [block.rows[index] for block, index in zip(blocks, indexes, strict=True)])
        return columns

    def clear(self, indexes: Sequence[int]) -> None:
        """Drop all fields of these rows."""
        for unit, _, own in self._route(indexes):
            unit.clear(own)

    def _route(self, indexes: Sequence[int]) -> list[tuple[StorageUnit, list[int], list[int]]]:
        """(unit, positions in the batch, indexes) for every unit that has a part in the batch."""
        routes = []
        for number, unit in enumerate(self.units):
            positions = [position for position, index in enumerate(indexes) if index % len(self.units) == number]
            if positions:
                routes.append((unit, positions, [indexes[position] for position in positions]))
        return routes
