"""Light and dark: every text of every view and of the widget stands out, and a wide table fits into the page.

The pictures lie beside those of the other browser tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kitlib.inspector import presence
from kitlib.inspector.page import Section, write_page
from tests.browser.grid import Grid
from tests.browser.lab import SECONDS, Lab, Notebook
from tests.inspector.queues import AGENT_LOOP, GRPO, OLD, keys_of, partition, snapshot

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]
CONTRAST = "\n".join(
    line for line in Path(__file__).with_name("contrast.js").read_text().splitlines() if not line.startswith("//")
)
THEMES = ("JupyterLab Light", "JupyterLab Dark")
CHANGE_THEME = """async (theme) => {
  await window.jupyterapp.commands.execute('apputils:change-theme', { theme });
}"""
WORN = """(isLight) => {
  const paper = getComputedStyle(document.body).getPropertyValue('--jp-layout-color0').trim();
  const isWhite = ['white', '#fff', '#ffffff'].includes(paper);
  return document.body.dataset.jpThemeLight === String(isLight) && isWhite === isLight;
}"""
WIDTH = "(element) => [element.scrollWidth, element.clientWidth]"

VIEWS = """
    from kitlib.inspector import *
    from kitlib.inspector.doctor import doctor
    from kitlib.inspector.render.model import Column, Table, ViewModel, cell, line, mark
    from kitlib.inspector.render.states import State
    from kitlib.inspector.timeline import Span, Timeline, joined
    from tests.inspector.doctor.cases import FOLDER
    from tests.inspector.queues import AGENT_LOOP, OLD, partition, snapshot, keys_of
    from tests.inspector.test_tokens import RECORDED, Words, queue
    from tests.test_timeline import resumed

    fields = (*AGENT_LOOP, *OLD, "ref_log_prob", "values", "token_level_rewards", "advantages", "returns")
    keys = keys_of(n=4)
    wide = presence(snapshot(partition(keys, fields, [(keys[0], "rm_scores")])), "compute_advantage")
    words = [state for state in State if not state.look.meaning]
    marks = tuple(state for state in State if state.look.meaning)
    looks = View(ViewModel(
        line(*((state.name, state) for state in words)), cell("facts"),
        (Table(tuple(Column(s.name, "group", mark=True) for s in marks), (tuple(map(mark, marks)),)),), marks,
        (cell("a note", State.DIM),)))
    views = [looks, wide, group_board(board_queue({"a": [1.0, 0.0], "b": [1.0, 1.0]})),
             tokens(queue(**RECORDED), "f3a1_3_0", Words()), time_line(resumed()),
             doctor(FOLDER / "case_27_nan_reward.json"), config_table({"data": {"train_batch_size": 4}})]
"""


def in_theme(notebook: Notebook, theme: str) -> None:
    """Change the theme; wait until the page wears it and the splash is gone, over which a second change would trip."""
    is_light = "Dark" not in theme
    if not notebook.page.evaluate(WORN, is_light):
        notebook.page.evaluate(CHANGE_THEME, theme)
        notebook.page.wait_for_function(WORN, arg=is_light)
    notebook.page.locator("#jupyterlab-splash").wait_for(state="detached")


def settled(page: Any, read: Callable[[], Any], is_good: Callable[[Any], bool]) -> Any:
    """What `read` gives once it is good: colours fade, a canvas is painted a frame later. What it gives at last if it
    never is."""
    deadline = time.monotonic() + SECONDS
    while not is_good(value := read()) and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    return value


def faint(notebook: Notebook, element: Any, picture: Path) -> dict[str, list[str]]:
    """{theme: texts that do not stand out}; a picture in each theme."""
    found = {}
    try:
        for theme in THEMES:
            in_theme(notebook, theme)
            found[theme] = settled(notebook.page, lambda: element.evaluate(CONTRAST), lambda texts: not texts)
            element.screenshot(path=picture.with_name(f"{picture.name}_{theme.split()[-1].lower()}.png"))
    finally:
        in_theme(notebook, THEMES[0])
    return {theme: texts for theme, texts in found.items() if texts}


def test_every_text_of_a_view_stands_out_in_both_themes(notebook: Notebook, pictures: Path) -> None:
    notebook.run(VIEWS + "    for view in views: display(view)")
    outputs = notebook.page.locator(".jp-Cell-outputArea").last
    assert faint(notebook, outputs, pictures / "views") == {}


def test_every_text_of_the_widget_stands_out_in_both_themes(notebook: Notebook, pictures: Path) -> None:
    notebook.run("""
        from kitlib.replay_buffer.waiting import BlockingPrompt, WaitReport
        wait = WaitReport("sample(train, 2 prompts): 1 of 2 ready", "running 1",
                          (BlockingPrompt("c0ffee", "running", 8, 8, 0, False),), False, "Not by itself.")
        Inspector(board_queue({"a": [1.0, 0.0]}), stage="compute_advantage", why_waiting=lambda: wait, height=260)
    """)
    grid = Grid(notebook)
    grid.click("a_0_0", "responses")
    grid.says("panel", "written")
    for name, said in (("cell", "written"), ("summary", "NOT READY"), ("groups", "teach"), ("waiting", "NOT END")):
        grid.tab(name).click()
        grid.says("panel", said)
        assert faint(notebook, grid.root, pictures / f"widget_{name}") == {}, name


def test_the_glyphs_on_the_canvas_follow_the_theme(notebook: Notebook) -> None:
    """Their ink is mixed with the text colour: darker than the plain blue on light paper, lighter on dark paper."""
    notebook.run("Inspector(board_queue({'a': [1.0, 0.0]}), height=260)")
    grid = Grid(notebook)
    x, y = grid.find("a_0_0, responses:")
    read = """(canvas, [x, y]) => {
      const box = [x - 12, y - 8, 24, 16].map((length) => length * window.devicePixelRatio);
      const { data } = canvas.getContext('2d').getImageData(...box);
      let bluest = [0, 0, 0];
      for (let i = 0; i < data.length; i += 4)
        if (data[i + 2] - data[i] > bluest[2] - bluest[0]) bluest = [...data.slice(i, i + 3)];
      return bluest;
    }"""
    inks = []
    try:
        for theme, is_good in zip(THEMES, (lambda ink: ink[0] < 47, lambda ink: ink[0] > 47), strict=True):
            in_theme(notebook, theme)
            inks.append(settled(notebook.page, lambda: grid.part("canvas").evaluate(read, [x, y]), is_good))
    finally:
        in_theme(notebook, THEMES[0])
    (light_red, *_), (dark_red, *_) = inks
    assert light_red < 47 < dark_red, inks


def test_a_wide_presence_table_does_not_scroll_sideways(notebook: Notebook, pictures: Path) -> None:
    notebook.run(VIEWS + "    wide")
    view = notebook.page.locator(".kitlib-view").last
    view.screenshot(path=pictures / "wide_presence.png")
    wanted, there = view.evaluate(WIDTH)
    assert there <= 1100 and wanted <= there, (wanted, there)


def test_nor_does_it_on_a_saved_page_of_1100_pixels(lab_and_browser: tuple[Lab, Any], pictures: Path) -> None:
    trained = ("prompt", "ability", "dummy_tensor", "mm_processor_kwargs", "mm_processor_output", "interaction_kwargs")
    trained += ("ref_log_prob", "values", "advantages", "returns", "update_log_probs", "loss_share")
    part = partition(keys_of(n=4), (*AGENT_LOOP, *OLD, *trained), [(keys_of(n=4)[0], "rm_scores")])
    view = presence(snapshot(part), "update_actor", GRPO)
    page = lab_and_browser[1].new_page(viewport={"width": 1100, "height": 600})
    try:
        page.set_content(write_page([Section("presence", view)], "saved"))
        page.screenshot(path=pictures / "saved_page.png")
        wanted, there = page.locator(".kitlib-view").evaluate(WIDTH)
    finally:
        page.close()
    assert len(view.model.tables[0].columns) >= 38 and wanted <= there, (wanted, there)
