"""Makes the pictures of the README from a real step: python docs/make_pictures.py

Needs chromium on the PATH, and the extras notebooks and dev. A step of the shipped demo runs up to the old log-probs;
then one row loses its reward, and the presence view says so; so does the widget, in a JupyterLab of its own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kitlib import TaskRunner, load_config, presence
from kitlib.inspector import View
from kitlib.transfer_queue import QueueProtocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.browser.grid import Grid
from tests.browser.lab import CHROMIUM_FLAGS, Lab, Notebook, chromium

HERE = Path(__file__).parent
PAGE = '<html><body style="margin:16px;background:#fff;color:#1f2328;font-family:sans-serif">{}</body></html>'


def lose_field(tq: QueueProtocol, key: str, field: str) -> None:
    """Write the row again without one of its fields."""
    tag = tq.kv_list("train")["train"][key]
    row = tq.kv_batch_get(keys=[key], partition_id="train").exclude(field)
    tq.kv_clear(keys=[key], partition_id="train")
    tq.kv_batch_put(keys=[key], partition_id="train", fields=row, tags=[tag])


def view_of_a_lost_reward() -> View:
    """128 rows, one without rm_scores, before the advantage stage."""
    config = load_config(["trainer.logger=[]"])
    runner = TaskRunner()
    try:
        trainer = runner.start(config)
        trainer.global_steps = 1
        trainer.begin_step()
        trainer.prepare_step()
        batch = trainer.compute_old_log_prob(trainer.balance_batch(trainer.sample()))
        lose_field(trainer.tq, batch.keys[77], "rm_scores")
        title = "step 1 after compute_old_log_prob"
        return presence(trainer.tq, stage="compute_advantage", config=config, title=title)
    finally:
        runner.close()


def screenshot(view: View, path: Path, size: str) -> None:
    """Render the view in headless Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no chromium found: install it (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(PAGE.format(view.html()), encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
        flags += ["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
        flags += [f"--user-data-dir={folder}/profile", "--force-device-scale-factor=2", f"--window-size={size}"]
        subprocess.run([browser, *flags, f"--screenshot={path}", page.as_uri()], check=True, capture_output=True)


RUN_A_STEP = """
from docs.make_pictures import lose_field
from kitlib import TaskRunner, load_config
from kitlib.inspector.widgets import Inspector
config = load_config(["trainer.logger=[]"])
trainer = TaskRunner().start(config)
trainer.begin_step(1)
trainer.prepare_step()
batch = trainer.compute_old_log_prob(trainer.balance_batch(trainer.sample()))
lose_field(trainer.tq, next(iter(trainer.tq.kv_list("train")["train"])), "rm_scores")
"""


def picture_of_the_widget(path: Path) -> None:
    """The widget beside the same step, rows of a uid together, the group board open."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        lab = Lab(Path(folder))
        try:
            browser = playwright.chromium.launch(executable_path=chromium(), headless=True, args=CHROMIUM_FLAGS)
            notebook = Notebook(lab, browser, "step")
            notebook.run(RUN_A_STEP)
            notebook.run("Inspector(trainer.tq, stage='compute_advantage', config=config, height=330)")
            grid = Grid(notebook)
            grid.shows(128)
            grid.root.get_by_role("button", name="by uid").click()
            grid.tab("groups").click()
            grid.says("panel", "groups teach")
            grid.root.screenshot(path=path)
            browser.close()
        finally:
            lab.close()


if __name__ == "__main__":
    screenshot(view_of_a_lost_reward(), HERE / "presence.png", "1300,430")
    picture_of_the_widget(HERE / "widget.png")
