"""The widgets without a browser: what they leave in a file, their threads, their memory, what travels with them."""

from __future__ import annotations

import builtins
import gc
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from kitlib.inspector import UnknownStageError
from kitlib.inspector.render.states import State
from kitlib.inspector.widgets import EmptyRecordingError, HtmlInspector, Inspector, NotebookExtraError
from kitlib.inspector.widgets.assets import SCRIPTS, STATIC, module, style_sheet
from kitlib.inspector.widgets.page import page
from kitlib.inspector.widgets.palette import palette
from kitlib.inspector.widgets.watcher import NAP
from kitlib.transfer_queue import TransferQueue, take_snapshot
from tests.inspector.queues import AGENT_LOOP, board_queue, keys_of, partition, snapshot, tag
from tests.kernels import PATIENCE, LocalKernelManager

ROOT = Path(__file__).resolve().parents[3]
WIDGETS = [Inspector, HtmlInspector]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kitlib")]


# -- what they say -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WIDGETS)
def test_text_and_html_are_the_static_views(kind: Any) -> None:
    tq = board_queue({"a": [1.0, 0.0]})
    with kind(tq, stage="compute_advantage") as shown:
        bundle = shown._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/html"}  # no kernel here, so nothing but the views
        assert bundle["text/plain"] == repr(shown)
        for text in bundle.values():
            assert "NOT READY" in text and "a_0_0" in text


def test_the_group_board_stands_below_once_there_are_rewards() -> None:
    with Inspector(board_queue({"a": [1.0, 0.0]})) as shown:
        assert "1 of 1 group teach" in shown.text() and "1 of 1 group teach" in shown.html()
    with Inspector(take_snapshot(board_queue({"a": [1.0, 0.0]}))) as shown:
        assert "teach" not in shown.text()


def test_a_closed_widget_says_what_it_saw_last() -> None:
    tq = board_queue({"a": [1.0]})
    shown = Inspector(tq)
    tq.kv_put("b_0_0", "train", {"responses": torch.ones(1)}, tag())
    shown.close()
    tq.kv_clear(["a_0_0", "b_0_0"], "train")
    assert "2 rows" in shown.text()
    shown.close()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UnknownStageError, match="compute_advantage"):
        Inspector(TransferQueue(), stage="compute_advantages")
    with pytest.raises(EmptyRecordingError, match="list without a snapshot"):
        Inspector([])
    with pytest.raises(EmptyRecordingError, match="int is neither a queue nor a recording"):
        Inspector(7)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    importing = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "anywidget":
            raise ImportError("No module named 'anywidget'")
        return importing(name, *rest)

    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(NotebookExtraError, match=r"pip install kitlib\[notebooks\]"):
        Inspector(TransferQueue())


# -- threads and memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WIDGETS)
@pytest.mark.parametrize("end", ["close", "collect"])
def test_no_thread_survives(kind: Any, end: str) -> None:
    shown = kind(board_queue({"a": [1.0]}))
    shown._watcher.start()
    assert threads() == ["kitlib inspector"]
    if end == "close":
        shown.close()
        assert threads() == []
    del shown
    gc.collect()
    deadline = time.monotonic() + 120
    while threads():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_idle_widget_takes_no_time() -> None:
    with Inspector(board_queue({"a": [1.0]})) as shown:
        looks, look, enough = [], shown._desk.look, threading.Event()

        def counted(changed: bool, **more: bool) -> bool:
            looks.append(changed)
            if len(looks) == 4:
                enough.set()
            return look(changed, **more)

        shown._desk.look = counted
        began = time.monotonic()
        shown._watcher.start()
        assert enough.wait(120)
        shown._watcher.stop()
        assert looks == [True] + [False] * (len(looks) - 1)
        assert len(looks) <= 2 + (time.monotonic() - began) / NAP


# -- a notebook without a front end ------------------------------------------------------------------------------------


def test_a_saved_notebook_shows_the_final_state_and_leaves_no_thread(tmp_path: Path) -> None:
    cells = [
        "import threading\nfrom kitlib.inspector.widgets import Inspector\n"
        "from tests.inspector.queues import board_queue\ntq = board_queue({'a': [1.0, 0.0]})\nshown = Inspector(tq)",
        "shown",
        "other = Inspector(tq)\nother",
        "tq.kv_clear(['a_1_0'], 'train')\nshown.close()",
        "print([thread.name for thread in threading.enumerate() if thread.name.startswith('kitlib')])",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)}
    client = NotebookClient(notebook, kernel_name="python3", kernel_manager_class=LocalKernelManager, **PATIENCE)
    client.execute(cwd=str(ROOT), env=environment)
    closed, still_open, threads_left = (notebook.cells[i].outputs[0] for i in (1, 2, 4))
    assert set(closed.data) == {"text/plain", "text/html"}
    assert "1 row" in closed.data["text/html"] and "a_1_0" not in closed.data["text/html"]
    assert set(still_open.data) == {"application/vnd.jupyter.widget-view+json", "text/plain", "text/html"}
    assert "2 rows" in still_open.data["text/plain"]
    assert threads_left.text == "['kitlib inspector']\n", "one of two was closed"


# -- pages of plain HTML -----------------------------------------------------------------------------------------------


def test_pages_cut_the_rows_and_judge_all_of_them() -> None:
    keys = keys_of([f"u{i:02d}" for i in range(30)])
    whole = snapshot(partition(keys, lacking=[(keys[-1], "rm_scores")]))
    first = page(whole, "compute_advantage", {"algorithm": {"adv_estimator": "grpo"}}, "train")
    assert (first.num_pages, first.num_rows) == (3, 120)
    assert "1 of 120 rows lacks rm_scores" in first.view.headline
    last = page(whole, None, None, "train", number=99)
    assert last.number == 2 and "rows 101 to 120 of 120" in last.view.text()
    assert keys[-1] in last.view.text(200) and keys[0] not in last.view.text(200)
    assert page(whole, None, None, "train", "u07_?_0").num_rows == page(whole, None, None, "train", "u07").num_rows == 4
    assert page(whole, None, None, "train", "nobody").num_rows == 0
    assert "no partition" in page(whole, None, None, "nowhere").view.headline


# -- what travels with the package -------------------------------------------------------------------------------------


def test_every_script_is_joined_and_nothing_comes_from_a_network() -> None:
    assert sorted(path.name for path in STATIC.glob("*.js")) == sorted(SCRIPTS)
    text = module()
    assert "import " not in text.replace("imports", "") and text.count("export ") == 1
    assert "http" not in text + style_sheet()
    tops = re.findall(r"^(?:async )?(?:function|class|const) (\w+)", text, re.M)
    assert len(tops) > 40
    assert len(tops) == len(set(tops)), "two scripts use one name"


def test_the_palette_says_what_the_judgement_says() -> None:
    made = palette(["prompts", "rm_scores", "mine"], None, "train")
    names = [column["name"] for column in made["columns"]]
    states = [state["name"] for state in made["states"]]
    look = {names[i]: [states[j] for j in rest[:3]] for i, *rest in made["looks"]["compute_advantage"]}
    assert look["rm_scores"] == ["NEEDED", "MISSING", "MISSING"]
    assert look["prompts"] == ["PRESENT", "LATE", "ABSENT"]
    assert look["advantages"][1] == "NOT_DUE" and look["mine"] == ["PRESENT", "ABSENT", "ABSENT"]
    assert [column["at"] for column in made["columns"] if column["at"] >= 0] == [0, 1, 2]
    assert set(names) >= set(AGENT_LOOP) - {"index"}
    assert states == [state.name for state in State]
