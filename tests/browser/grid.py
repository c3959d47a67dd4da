"""What a test does with the grid on a page: wait for it, point at a cell, read what its parts say."""

from __future__ import annotations

import time
from typing import Any

from tests.browser.lab import SECONDS, Notebook

HOVER_AT = """(canvas, [x, y]) => {
  const box = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new MouseEvent('mousemove', { clientX: box.left + x, clientY: box.top + y, bubbles: true }));
  return canvas.title;
}"""
STEP = 10  # px; half a row


class Grid:
    """The index-th grid on the page, painted at least once."""

    def __init__(self, notebook: Notebook, index: int = 0) -> None:
        self.page = notebook.page
        self.root = notebook.page.locator(".kitlib-inspector[data-ready]").nth(index)
        self.root.wait_for(state="attached")
        self.root.scroll_into_view_if_needed()

    def part(self, name: str) -> Any:
        """An element by the end of its class: verdict, filter, count, slider, panel, canvas .."""
        return self.root.locator(f".kitlib-{name}").first

    def wait_for(self, condition: str, value: Any = None) -> None:
        """Wait until `condition`, a function (element, value) => bool in JavaScript, holds."""
        self.page.wait_for_function(
            f"([element, value]) => ({condition})(element, value)", arg=[self.root.element_handle(), value]
        )

    def shows(self, num_rows: int) -> None:
        """Wait until so many rows are shown."""
        self.wait_for("(element, rows) => Number(element.dataset.rows) === rows", num_rows)

    def says(self, name: str, text: str) -> None:
        """Wait until a part contains a text."""
        self.root.locator(f".kitlib-{name}", has_text=text).first.wait_for(state="attached")

    def text(self, name: str) -> str:
        """The text of a part."""
        return self.part(name).inner_text()

    def tab(self, text: str) -> Any:
        """A tab of partitions or panels by its text."""
        return self.root.get_by_role("tab", name=text)

    def find(self, hover: str) -> tuple[float, float]:
        """Where on the canvas the pointer reads a text that starts with `hover`; waits until it does somewhere."""
        deadline = time.monotonic() + SECONDS
        while (place := self._look_for(hover)) is None:
            assert time.monotonic() < deadline, f"no cell in sight reads {hover!r}"
            self.page.wait_for_timeout(100)
        return place

    def _look_for(self, hover: str) -> tuple[float, float] | None:
        canvas = self.part("canvas")
        box = canvas.bounding_box()
        for y in range(STEP, int(box["height"]), STEP):
            if canvas.evaluate(HOVER_AT, [20, y]).startswith(hover.split(",")[0]):
                for x in range(STEP, int(box["width"]), STEP):
                    if canvas.evaluate(HOVER_AT, [x, y]).startswith(hover):
                        return x, y
        return None

    def keys(self) -> list[str]:
        """The keys in sight, from top to bottom."""
        canvas = self.part("canvas")
        hovers = [canvas.evaluate(HOVER_AT, [20, y]) for y in range(STEP, int(canvas.bounding_box()["height"]), STEP)]
        return list(dict.fromkeys(hover.split(",")[0] for hover in hovers if "," in hover))

    def shows_keys(self, keys: list[str]) -> None:
        """Wait until these keys are in sight, from top to bottom."""
        deadline = time.monotonic() + SECONDS
        while self.keys() != keys:
            assert time.monotonic() < deadline, self.keys()
            self.page.wait_for_timeout(100)

    def click(self, key: str, field: str) -> None:
        """Click a cell that is in sight."""
        x, y = self.find(f"{key}, {field}:")
        self.part("canvas").click(position={"x": x, "y": y})
