"""What the live widget costs, in a real JupyterLab with headless Chromium.

    python bench/widget.py [rows ..]          default 1,000, 10,000 and 100,000 rows of 30 fields

Five times a second a thread of the kernel overwrites one field of 200 random rows, with another length each time. A
row of the table tells, for one size of queue:

    paint      Inspector(tq) begins .. its first picture is painted
    push       a message leaves the kernel .. it is painted        (median and maximum of the ticks)
    write      the put returns .. the picture that shows it is painted: waiting for the tick is in it (median)
    long       time of the browser's main thread in tasks of more than 50 ms while ticks come
    look       what a tick costs in the kernel (median)            KB    bytes of a tick on the wire
    click      click on a cell .. its facts are there              filter  a word typed .. the rows that pass are shown
    idle       share of a core that the kernel takes while nothing changes, without and with the widget
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.console import Console
from rich.table import Table
from tensordict import TensorDict

from kitlib.transfer_queue import TransferQueue

NUM_FIELDS, NUM_CELLS, HZ, SECONDS = 30, 200, 5, 8
STATUS = {"status": "success", "prompt_len": 11, "response_len": 20, "seq_len": 31, "global_steps": 3}
COLUMNS = (
    "rows",
    "paint s",
    "push ms",
    "max",
    "write ms",
    "long ms",
    "look ms",
    "KB",
    "click ms",
    "filter ms",
    "idle %",
)

PREPARE = """
import threading, time, psutil
from bench.widget import Churn, large_queue
from kitlib.inspector.widgets import Inspector, comms  # comms: the libraries are loaded before the clock runs
me = psutil.Process()
def share(seconds=4):
    before = sum(me.cpu_times()[:2]); time.sleep(seconds)
    return 100 * (sum(me.cpu_times()[:2]) - before) / seconds
"""
OBSERVE = """() => {
  window.painted = []; window.long = 0;
  new PerformanceObserver((list) => {
    for (const mark of list.getEntries()) if (mark.name === 'kitlib-painted')
      window.painted.push([mark.detail.seq, mark.detail.sentAt, (performance.timeOrigin + mark.startTime) / 1000]);
  }).observe({ type: 'mark' });
  new PerformanceObserver((list) => { for (const task of list.getEntries()) window.long += task.duration; })
    .observe({ type: 'longtask' });
}"""


def large_queue(num_rows: int, num_fields: int = NUM_FIELDS) -> TransferQueue:
    """Rows u00000_0_0 .., eight a uid, with fields f00 .. of one number each."""
    tq = TransferQueue()
    keys = [f"u{i // 8:05d}_{i % 8}_0" for i in range(num_rows)]
    columns = {f"f{j:02d}": torch.zeros(num_rows, 1) for j in range(num_fields)}
    tq.kv_batch_put(keys, "train", TensorDict(columns, batch_size=num_rows), [dict(STATUS) for _ in keys])
    return tq


class Churn:
    """Overwrites cells of random rows, HZ times a second, and measures the looks of an inspector meanwhile."""

    def __init__(self, tq: TransferQueue, inspector: Any) -> None:
        self.tq, self.keys = tq, list(tq.kv_list("train")["train"])
        self.written_at: list[float] = []
        self.looks: list[float] = []
        self.num_bytes: list[int] = []
        desk, outlet = inspector._desk, inspector._outlet
        self._look, self._push = desk.look, outlet.push
        desk.look, outlet.push = self._timed_look, self._counted_push

    def _timed_look(self, changed: bool, **more: bool) -> bool:
        began = time.perf_counter()
        goes_on = self._look(changed, **more)
        if changed:
            self.looks.append(time.perf_counter() - began)
        return goes_on

    def _counted_push(self, content: Any, buffers: list[bytes]) -> None:
        if buffers:
            self.num_bytes.append(sum(map(len, buffers)))
        self._push(content, buffers)

    def run(self) -> dict[str, Any]:
        """Write for SECONDS; returns medians and when each write ended."""
        for step in range(SECONDS * HZ):
            rows = torch.randperm(len(self.keys))[:NUM_CELLS].tolist()
            values = TensorDict(
                {f"f{step % NUM_FIELDS:02d}": torch.ones(NUM_CELLS, 2 + step % 3)}, batch_size=NUM_CELLS
            )
            self.tq.kv_batch_put([self.keys[i] for i in rows], "train", values)
            self.written_at.append(time.time())
            time.sleep(1 / HZ)
        look, kilobytes = 1000 * statistics.median(self.looks), statistics.median(self.num_bytes) / 1000
        return {"written_at": self.written_at, "look": look, "kilobytes": kilobytes}


def measure(notebook: Any, num_rows: int) -> list[object]:
    """One row of the table."""
    page = notebook.page
    ask = notebook.value
    notebook.run(f"tq = large_queue({num_rows}); idle = share()")
    page.evaluate(OBSERVE)
    notebook.run("began = time.time(); shown = Inspector(tq); shown")
    page.locator(".kitlib-inspector[data-ready]").last.wait_for(state="attached")
    page.wait_for_timeout(500)
    first_paint = page.evaluate("() => window.painted[0][2]") - ask("began")
    page.wait_for_timeout(3000)  # the verdict over all rows comes after the first picture
    with_widget = ask("share()")
    page.evaluate("() => { window.long = 0; }")
    notebook.run("churn = Churn(tq, shown); found = churn.run(); time.sleep(1)")
    found, painted = ask("found"), page.evaluate("() => window.painted")
    long = page.evaluate("() => window.long")
    pushes = {}
    for seq, sent_at, at in painted:
        if sent_at > found["written_at"][0] and seq not in pushes:
            pushes[seq] = 1000 * (at - sent_at)
    seen = [min((at for _, sent, at in painted if sent >= write), default=write) for write in found["written_at"]]
    writes = [1000 * (at - write) for at, write in zip(seen, found["written_at"], strict=True)]
    click, typed = times_of_reader(page)
    notebook.run("shown.close(); tq.close()")
    push, most, write = statistics.median(pushes.values()), max(pushes.values()), statistics.median(writes)
    shares = f"{ask('idle'):.1f} / {with_widget:.1f}"
    return [
        f"{num_rows:,}",
        first_paint,
        push,
        most,
        write,
        long,
        found["look"],
        found["kilobytes"],
        click,
        typed,
        shares,
    ]


def times_of_reader(page: Any) -> tuple[float, float]:
    """Milliseconds of a click and of a filter, as the reader sees them."""
    canvas, root = page.locator(".kitlib-canvas").last, page.locator(".kitlib-inspector").last
    clicks = []
    for i in range(5):
        began = time.perf_counter()
        canvas.click(position={"x": 300 + 24 * i, "y": canvas.bounding_box()["height"] - 30})
        root.locator(".kitlib-panel dt", has_text="written").wait_for()
        clicks.append(1000 * (time.perf_counter() - began))
    script = """(root) => { const box = root.querySelector('.kitlib-filter'); const began = performance.now();
      box.value = 'u0000'; box.dispatchEvent(new Event('input')); return performance.now() - began; }"""
    return statistics.median(clicks), root.evaluate(script)


def main(sizes: list[int]) -> None:
    """Print the table."""
    from tests.browser.lab import CHROMIUM_FLAGS, Lab, Notebook, chromium, why_not

    if reason := why_not():
        print(f"not measured: {reason}")
        return
    from playwright.sync_api import sync_playwright

    table = Table(
        *COLUMNS, title=f"Inspector, {NUM_FIELDS} fields, {NUM_CELLS} cells written a tick, {HZ} ticks a second"
    )
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder) / "lab")
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium(), headless=True, args=CHROMIUM_FLAGS)
                for size in sizes:
                    notebook = Notebook(lab, browser, f"bench_{size}")
                    notebook.run(PREPARE)
                    table.add_row(*(f"{x:.3g}" if isinstance(x, float) else str(x) for x in measure(notebook, size)))
                    notebook.close()
        finally:
            lab.close()
    Console(width=120).print(table)


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [1_000, 10_000, 100_000])
