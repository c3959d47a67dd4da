"""The life of a widget in a real JupyterLab: lost messages, a reloaded page, closing, being forgotten; and the plain
table. Each test stands under a hard timeout."""

from __future__ import annotations

import pytest

from tests.browser.grid import Grid
from tests.browser.lab import Notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def test_a_lost_message_is_noticed_and_mended(notebook: Notebook) -> None:
    notebook.run("tq = board_queue({'a': [1.0, 0.0]})\nshown = Inspector(tq)\nshown")
    grid = Grid(notebook)
    grid.shows(2)
    notebook.run("""
        push, shown._outlet.push = shown._outlet.push, lambda content, buffers: None
        tq.kv_put('b_0_0', 'train', {'responses': torch.tensor([1])}, tag())
        time.sleep(1)
        shown._outlet.push = push
        tq.kv_put('c_0_0', 'train', {'responses': torch.tensor([1])}, tag())
    """)
    grid.shows(4)
    grid.find("b_0_0, responses: present")


def test_a_reload_of_the_page_finds_the_widget_again(notebook: Notebook) -> None:
    notebook.run("tq = board_queue({'a': [1.0, 0.0]})\nInspector(tq)")
    Grid(notebook).shows(2)
    notebook.run("tq.kv_put('b_0_0', 'train', {'responses': torch.tensor([1])}, tag())")
    Grid(notebook).shows(3)
    notebook.save()
    notebook.open()
    grid = Grid(notebook)
    grid.shows(3)
    notebook.run("tq.kv_put('c_0_0', 'train', {'responses': torch.tensor([1])}, tag())")
    grid.shows(4)
    notebook.start("time.sleep(6)")
    grid.click("c_0_0", "responses")
    grid.says("panel", "int64 J[1], 8 bytes")


def test_close_leaves_the_final_state_as_a_static_view(notebook: Notebook) -> None:
    index = notebook.run("tq = board_queue({'a': [1.0, 0.0]})\nshown = Inspector(tq)\nshown")
    Grid(notebook).shows(2)
    notebook.run("tq.kv_put('b_0_0', 'train', {'responses': torch.tensor([1])}, tag())\nshown.close()")
    notebook.page.locator(".kitlib-view", has_text="3 rows").first.wait_for()
    notebook.page.locator(".kitlib-inspector").wait_for(state="detached")
    (output,) = notebook.save().cells[index].outputs
    assert set(output.data) == {"text/plain", "text/html"}
    assert "3 rows" in output.data["text/html"] and "3 rows" in output.data["text/plain"]


def test_a_closed_queue_keeps_its_last_picture(notebook: Notebook) -> None:
    notebook.run("tq = board_queue({'a': [1.0, 0.0]})\nInspector(tq)")
    grid = Grid(notebook)
    grid.shows(2)
    notebook.run("tq.close()")
    grid.says("trouble", "the queue is closed")
    grid.shows(2)


def test_forgotten_once_no_page_shows_it_and_nobody_holds_it(notebook: Notebook) -> None:
    notebook.run("tq = board_queue({'a': [1.0, 0.0]})\ndisplay(Inspector(tq))")
    Grid(notebook).shows(2)
    notebook.clear()
    notebook.run("""
        import gc
        until = time.monotonic() + 120
        while any(thread.name == "kitlib inspector" for thread in threading.enumerate()):
            gc.collect()
            time.sleep(0.1)
            assert time.monotonic() < until, "the thread goes on"
    """)


def test_pages_of_plain_html(notebook: Notebook) -> None:
    notebook.run("tq = board_queue({f'u{i:02d}': [1.0] * 4 for i in range(30)})\nHtmlInspector(tq)")
    view = notebook.page.locator(".widget-html .kitlib-view")
    view.filter(has_text="rows 1 to 50 of 120").wait_for()
    notebook.page.get_by_role("button", name="Next").click()
    view.filter(has_text="rows 51 to 100 of 120").wait_for()
    filter_box = notebook.page.get_by_role("textbox", name="filter")
    filter_box.fill("u07")
    filter_box.press("Enter")
    view.filter(has_text="rows 1 to 4 of 4").wait_for()
    notebook.run("tq.kv_put('u07_9_0', 'train', {'responses': torch.tensor([1])}, tag())")
    view.filter(has_text="rows 1 to 5 of 5").wait_for()
