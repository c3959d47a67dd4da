"""The rows of a presence view as a matrix: which row has which field, who lacks what, which rows look the same.

Pure numpy on the snapshot's own matrix, so that 10,000 rows of 30 fields take a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kitlib.inspector.judgement import Judgement
from kitlib.inspector.names import ShortNames
from kitlib.inspector.selection import Selection
from kitlib.keys import uid_of


@dataclass(frozen=True)
class Kind:
    """Rows with the same fields. `positions` count in the selection; `present` is over the shown fields."""

    positions: tuple[int, ...]
    present: tuple[bool, ...]
    is_padding: bool


class PresenceRows:
    """The selected rows against the fields worth a column.

    present: bool [num_rows, num_fields], padding: bool [num_rows].
    """

    def __init__(self, selection: Selection, judgement: Judgement, names: ShortNames) -> None:
        self.selection, self.judgement, self.names = selection, judgement, names
        self.keys = selection.keys(selection.rows)
        self.tags = selection.tags(selection.rows)
        self.marker_keys, self.marker_tags = selection.keys(selection.markers), selection.tags(selection.markers)
        self.fields = judgement.columns(selection.partition.fields)
        self.present = selection.presence(self.fields)
        self.padding = np.array([selection.is_padding(i) for i in selection.rows], dtype=bool)

    def lacking(self, field: str) -> list[str]:
        """Keys of the rows without this field."""
        return [self.keys[i] for i in np.flatnonzero(~self.present[:, self.fields.index(field)])]

    def lacking_any(self, fields: Sequence[str]) -> dict[str, list[str]]:
        """Field -> keys without it, for the fields that at least one row lacks."""
        return {field: keys for field in fields if (keys := self.lacking(field))}

    def bare(self) -> list[str]:
        """Keys of the rows without any field at all."""
        return [self.keys[i] for i in np.flatnonzero(self.selection.num_fields_of_rows() == 0)]

    def num_groups(self) -> int:
        """Distinct uids, padding left out."""
        return len({uid_of(key) for key, is_padding in zip(self.keys, self.padding, strict=True) if not is_padding})

    def kinds(self, rows: Sequence[int], fields: Sequence[int]) -> list[Kind]:
        """Rows grouped by equal presence over the fields: the largest kind first, then those with fewer fields
        first."""
        if not rows:
            return []
        positions = np.asarray(rows)
        shown = np.column_stack([self.present[positions][:, list(fields)], self.padding[positions]])
        _, first, inverse = np.unique(np.packbits(shown, axis=1), axis=0, return_index=True, return_inverse=True)
        inverse = inverse.reshape(-1)  # [num_rows]: numpy 2.0 gave it a second dim
        members = np.split(positions[np.argsort(inverse, kind="stable")], np.cumsum(np.bincount(inverse))[:-1])
        kinds = [
            Kind(tuple(map(int, group)), tuple(map(bool, shown[f, :-1])), bool(shown[f, -1]))
            for f, group in zip(first, members, strict=True)
        ]
        needed = [g for g, j in enumerate(fields) if self.fields[j] in self.judgement.reads]
        largest = max(kinds, key=lambda kind: (len(kind.positions), sum(kind.present)))
        odd = [kind for kind in kinds if kind is not largest]
        odd.sort(key=lambda kind: (sum(kind.present[g] for g in needed), sum(kind.present), -len(kind.positions)))
        return [largest, *odd]
