"""What a browser would hold: an outlet that applies the messages as static/data.js does."""

from __future__ import annotations

from typing import Any

import numpy as np

from kitlib.inspector.widgets.desk import Message


class Browser:
    """Rows as the browser has them. `lost` counts messages with a number that does not follow."""

    def __init__(self) -> None:
        self.frame: Message = {}
        self.palette: Message = {}
        self.names: list[str] = []
        self.marks = np.zeros((2, 0), dtype=np.uint8)
        self.cells = np.zeros((0, 0), dtype=np.uint8)
        self.replies: list[Message] = []
        self.panels: dict[str, str] = {}
        self.num_whole = self.num_deltas = self.num_bytes = self.lost = 0

    def whole(self, frame: Message, palette: Message, names: bytes, marks: bytes, cells: bytes) -> None:
        self.frame, self.palette, self.names = frame, palette, _lines(names)
        self.marks = np.frombuffer(marks, np.uint8).reshape(2, -1)
        self.cells = np.frombuffer(cells, np.uint8).reshape(len(self.names), frame["num_fields"])
        self.num_whole += 1

    def push(self, content: Message, buffers: list[bytes]) -> None:
        if content["kind"] == "panel":
            self.panels[content["name"]] = content["html"]
            return
        self.lost += content["frame"]["seq"] != self.frame["seq"] + 1
        self.num_deltas += 1
        self.num_bytes += sum(map(len, buffers))
        if buffers:
            self._apply(*buffers)
        self.frame = content["frame"]

    def reply(self, content: Message) -> None:
        self.replies.append(content)

    def _apply(self, *buffers: bytes) -> None:
        removed, cells, rows = (np.frombuffer(buffers[i], "<u4") for i in (0, 1, 3))
        values, marks = (np.frombuffer(buffers[i], np.uint8) for i in (2, 4))
        added_names = _lines(buffers[5])
        added_marks, added_cells = (np.frombuffer(buffers[i], np.uint8) for i in (6, 7))
        width = self.cells.shape[1]
        gone = set(removed.tolist())
        self.names = [name for i, name in enumerate(self.names) if i not in gone] + added_names
        kept, kept_marks = np.delete(self.cells, removed, axis=0), np.delete(self.marks, removed, axis=1)
        kept.reshape(-1)[cells] = values
        kept_marks[:, rows] = marks.reshape(2, -1)
        self.cells = np.concatenate([kept, added_cells.reshape(len(added_names), width)])
        self.marks = np.concatenate([kept_marks, added_marks.reshape(2, -1)], axis=1)

    def shown(self) -> dict[str, Any]:
        """{name: (fields that are there, kind, status)} in the order of the rows."""
        columns = {column["at"]: column["name"] for column in self.palette["columns"] if column["at"] >= 0}
        words = self.frame["words"]
        return {
            name: ({columns[j] for j in np.flatnonzero(row)}, int(kind), words[status])
            for name, row, kind, status in zip(self.names, self.cells, *self.marks, strict=True)
        }


def _lines(blob: bytes) -> list[str]:
    return blob.decode().split("\n") if blob else []
