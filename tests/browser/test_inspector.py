"""Inspector in a real JupyterLab: what a reader sees and does. Each test stands under a hard timeout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.grid import Grid
from tests.browser.lab import Notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

BOARD = """
    tq = watch(board_queue({f"uid{i:02d}": [float((i + s) % 3 == 0) for s in range(4)] for i in range(6)}))
    for i in range(6):
        tq.kv_put(f"uid{i:02d}", "train", tag=marker(["pending", "running", "finished"][i % 3]))
    tq.kv_put("x_0_0", "val", {"responses": torch.tensor([1])}, tag())
"""
WORK = """
    def put_one(step):
        with acting_as(stage="generate_sequences"):
            tq.kv_put(f"w{step}_0_0", "train", {"responses": torch.tensor([1, 2])}, tag())

    def work_until_there_is(file):
        for step in itertools.count(1):
            if file.exists():
                return
            put_one(step)
            time.sleep(0.2)
"""


def test_it_renders_what_is_there_and_judges_it(notebook: Notebook, pictures: Path) -> None:
    notebook.run(BOARD + '    Inspector(tq, stage="compute_advantage", n=4)')
    grid = Grid(notebook)
    grid.shows(30)
    assert grid.text("verdict").startswith("NOT READY: no row has uid")
    assert grid.text("count") == "30 keys"
    assert "missing and needed now" in grid.text("legend")
    assert grid.tab("val 1").count() == 1
    assert grid.part("canvas").get_attribute("aria-rowcount") == "30"
    grid.find("uid00_0_0, advantages: not due")
    grid.tab("groups").click()
    grid.says("panel", "6 of 6 groups teach something")
    notebook.page.screenshot(path=pictures / "groups.png")
    grid.tab("val 1").click()
    grid.shows(1)
    grid.find("x_0_0, responses: present")


def test_updates_and_clicks_while_a_cell_runs(notebook: Notebook, tmp_path: Path) -> None:
    """Also when the widget is displayed by the very cell that goes on to block."""
    stop = tmp_path / "stop"
    notebook.run(BOARD + WORK)
    notebook.start(f"display(Inspector(tq)); work_until_there_is(Path({str(stop)!r})); print('the end')")
    try:
        see_what_goes_on(Grid(notebook))
        assert "the end" not in notebook.page.locator(".jp-Cell-outputWrapper").last.inner_text()
    finally:
        stop.touch()
    notebook.page.get_by_text("the end", exact=True).wait_for()


def see_what_goes_on(grid: Grid) -> None:
    """New rows come, and a click is answered."""
    grid.wait_for("(element) => Number(element.dataset.rows) > 33")
    grid.click("uid00_0_0", "rm_scores")
    grid.says("panel", "float32 J[4]")
    grid.root.get_by_role("button", name="show values").click()
    grid.says("panel", "0 0 0 1")
    before = int(grid.root.get_attribute("data-rows"))
    grid.wait_for("(element, rows) => Number(element.dataset.rows) > rows + 3", before)


def test_a_click_names_the_writer(notebook: Notebook) -> None:
    notebook.run(BOARD + WORK + "\n    put_one(1)\n    Inspector(tq)")
    grid = Grid(notebook)
    grid.part("filter").fill("w1_")
    grid.shows(1)
    grid.click("w1_0_0", "responses")
    grid.says("panel", "by generate_sequences, ")
    grid.says("panel", "int64 J[2], 16 bytes")
    grid.says("panel", "success  len 11+20")


def test_filter_stage_and_keyboard(notebook: Notebook) -> None:
    notebook.run(BOARD + "    Inspector(tq)")
    grid = Grid(notebook)
    page = notebook.page
    num_cells = page.locator(".jp-Notebook .jp-Cell").count()
    grid.part("canvas").focus()
    page.keyboard.press("/")
    page.keyboard.type("uid03")
    grid.shows(5)
    assert grid.text("count") == "5 of 30 keys"
    grid.part("filter").fill("is:marker status:run")
    grid.shows(2)
    page.keyboard.press("Escape")
    grid.shows(30)
    assert grid.part("filter").input_value() == ""
    grid.root.get_by_label("judge by the needs").select_option("update_actor")
    grid.says("verdict", "NOT READY")
    grid.part("filter").fill("is:missing field:adv*")
    grid.shows(24)
    page.keyboard.press("Enter")  # from the filter into the grid
    for key in ("ArrowDown", "ArrowDown", "End", "Enter"):
        page.keyboard.press(key)
    grid.says("spoken", "row 2 of 24: uid00_1_0, advantages: missing and needed now")
    grid.says("title", "uid00_1_0")
    grid.says("panel", "absent")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    grid.says("panel", "Click a cell")
    assert page.locator(".jp-Notebook .jp-Cell").count() == num_cells, (
        "the notebook took a key for a command of its own"
    )


def test_rows_of_a_uid_can_be_shown_together(notebook: Notebook, pictures: Path) -> None:
    notebook.run("""
        tq = TransferQueue()
        for session in range(3):
            for uid in ("aa", "bb", "cc"):
                tq.kv_put(f"{uid}_{session}_0", "train", {"responses": torch.tensor([1])}, tag())
        Inspector(tq)
    """)
    grid = Grid(notebook)
    grid.shows(9)
    in_order = [f"{uid}_{session}_0" for session in range(3) for uid in ("aa", "bb", "cc")]
    grid.shows_keys(in_order)
    button = grid.root.get_by_role("button", name="by uid")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    grid.shows_keys(sorted(in_order))
    notebook.run("tq.kv_put('aa_3_0', 'train', {'responses': torch.tensor([1])}, tag())")
    grid.shows(10)
    grid.shows_keys(sorted([*in_order, "aa_3_0"]))
    grid.click("cc_1_0", "responses")
    grid.says("title", "cc_1_0")
    notebook.page.screenshot(path=pictures / "by_uid.png")
    button.click()
    grid.shows_keys([*in_order, "aa_3_0"])


def test_the_panel_says_what_sample_waits_for(notebook: Notebook, pictures: Path) -> None:
    notebook.run("""
        from kitlib.replay_buffer import ReplayBuffer
        tq = board_queue({"u01": [1.0, 0.0], "u02": [1.0]})
        for uid, status in (("u01", "finished"), ("u02", "running")):
            tq.kv_put(uid, "train", tag={**marker(status), "num_sessions": 2})
        buffer = ReplayBuffer(tq, live_uids=lambda: {"u02"})
        waiting = threading.Thread(target=buffer.sample, args=(3, "train", 2))
        waiting.start()
        Inspector(tq, why_waiting=buffer.why_waiting)
    """)
    grid = Grid(notebook)
    grid.tab("waiting").click()
    grid.says("panel", "1 of 2 ready")
    grid.says("panel", "it will end")
    grid.says("panel", "1 of 2")
    notebook.page.screenshot(path=pictures / "waiting.png")
    notebook.run("tq.kv_put('u02', 'train', tag={'status': 'finished'}); waiting.join(10)")
    grid.says("panel", "nothing is waiting")


def test_controls_have_names_for_screen_readers(notebook: Notebook) -> None:
    notebook.run(BOARD + "    Inspector(tq, history=[take_snapshot(tq)] * 2)")
    grid = Grid(notebook)
    for role, name in (
        ("tablist", "partitions"),
        ("combobox", "judge by the needs of this stage"),
        ("searchbox", "filter rows and fields"),
        ("button", "by uid"),
        ("button", "live"),
        ("slider", "recorded moment"),
        ("grid", "keys and fields of partition train"),
    ):
        assert grid.root.get_by_role(role, name=name).count() == 1, (role, name)


def test_rows_come_and_go_while_live(notebook: Notebook) -> None:
    notebook.run("tq = board_queue({'a': [1.0, 0.0], 'b': [0.0, 0.0]})\nInspector(tq)")
    grid = Grid(notebook)
    grid.shows(4)
    notebook.run("tq.kv_clear(['a_1_0', 'b_0_0'], 'train')")
    grid.shows(2)
    grid.find("b_1_0, rm_scores: present")
    notebook.run("tq.kv_put('c_0_0', 'train', {'responses': torch.tensor([1])}, tag('late'))")
    grid.shows(3)
    grid.find("c_0_0, responses: present")
    grid.find("c_0_0, rm_scores: absent")
    grid.find("c_0_0, late")
    notebook.run("tq.kv_put('c_0_0', 'train', {'brand_new': torch.tensor([1])})")
    grid.find("a_0_0, brand_new: absent")
    notebook.run("tq.kv_clear(['a_0_0', 'b_1_0', 'c_0_0'], 'train')")
    grid.shows(0)
    grid.says("verdict", "no row yet")


def test_long_uids_are_cut_to_what_tells_them_apart(notebook: Notebook) -> None:
    notebook.run("""
        import uuid
        tq = TransferQueue()
        shown = Inspector(tq)
        shown
    """)
    grid = Grid(notebook)
    width = "(element) => Number(element.querySelector('.kitlib-area').style.width.replace('px', ''))"
    narrow = grid.root.evaluate(width)
    notebook.run("""
        for i in range(5):
            tq.kv_put(f"{i}-{uuid.UUID(int=0)}_0_0", "train", {"responses": torch.ones(1)}, tag())
    """)
    grid.shows(5)
    grid.find("4-00000000-0000-0000-0000-000000000000_0_0, responses: present")  # the hover has the whole key
    assert grid.root.evaluate(width) < narrow + 100


def test_two_views_share_the_picture_and_keep_their_filters(notebook: Notebook) -> None:
    notebook.run("tq = board_queue({'a': [1.0, 0.0], 'b': [0.0, 0.0]})\nshown = Inspector(tq)\nshown")
    notebook.run("shown")
    first, second = Grid(notebook, 0), Grid(notebook, 1)
    second.part("filter").fill("a_")
    second.shows(2)
    notebook.run("tq.kv_put('a_7_0', 'train', {'responses': torch.tensor([1])}, tag())")
    first.shows(5)
    second.shows(3)
    notebook.run("shown.stage = 'compute_advantage'")
    for grid in (first, second):
        grid.says("verdict", "NOT READY")
    notebook.run("""
        until = time.monotonic() + 60
        while len(shown._requests.views) != 2:
            assert time.monotonic() < until, shown._requests.views
            time.sleep(0.05)
    """)


def test_the_slider_walks_through_a_recording(notebook: Notebook) -> None:
    notebook.run("""
        tq, snapshots = TransferQueue(), []
        for i in range(5):
            tq.kv_put(f"a_{i}_0", "train", {"responses": torch.tensor([i])}, tag())
            snapshots.append(take_snapshot(tq))
        Inspector(snapshots)
    """)
    grid = Grid(notebook)
    grid.shows(5)
    slider = grid.part("slider")
    slider.focus()
    notebook.page.keyboard.press("Home")
    grid.shows(1)
    grid.says("time", "moment 1 of 5")
    notebook.page.keyboard.press("ArrowRight")
    grid.shows(2)
    grid.part("follow").click()
    grid.shows(5)
    grid.click("a_2_0", "responses")
    grid.says("panel", "int64 J[1], 8 bytes")


def test_freeze_and_follow(notebook: Notebook) -> None:
    notebook.run("tq = board_queue({'a': [1.0, 0.0]})\nInspector(tq, history=[take_snapshot(TransferQueue())])")
    grid = Grid(notebook)
    grid.shows(2)
    grid.part("follow").click()
    grid.says("follow", "▶ follow")
    notebook.run("tq.kv_put('b_0_0', 'train', {'responses': torch.tensor([1])}, tag())\ntime.sleep(0.5)")
    grid.shows(2)
    grid.part("follow").click()
    grid.shows(3)


def test_a_hundred_thousand_rows(notebook: Notebook) -> None:
    notebook.run("""
        from bench.widget import large_queue
        tq = large_queue(100_000, 30)
    """)
    notebook.run("Inspector(tq)")
    grid = Grid(notebook)
    grid.shows(100_000)
    grid.part("canvas").focus()
    notebook.page.keyboard.press("ArrowDown")
    notebook.page.keyboard.press("Control+End")
    grid.says("spoken", "row 100000 of 100000: u12499_7_0")
    grid.find("u12499_7_0, f00: present")
    grid.part("filter").fill("u12345_*")
    grid.shows(8)
    notebook.run("tq.kv_clear(['u12345_0_0'], 'train')")
    grid.shows(7)
