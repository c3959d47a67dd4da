"""kitlib inspect: which source, which views, the screen and its keys, the page."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from kitlib import cli
from kitlib.contract import StageRecord
from kitlib.inspector import open_recording, record
from kitlib.inspector.command import _first_view
from kitlib.inspector.newest import NothingToInspectError, newest_recording
from kitlib.inspector.scene import NEED_OPTION, VIEWS, Scene, open_scene, show
from kitlib.inspector.terminal import Screen, page_of, print_once, split_keys
from kitlib.replay_buffer.waiting import WaitReport
from kitlib.transfer_queue import acting_as
from tests.inspector.queues import board_queue, put_row


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two moments of step 1: after sample two rows, after compute_old_log_prob three."""
    root = tmp_path_factory.mktemp("runs")
    with record(board_queue({"f3a1": [1, 0]}), root / "a" / "recording", ["rm_scores"], tick=60) as recorder:
        recorder.mark("sample", 1, StageRecord("sample", 1, time.time(), 2, "train", 0.01))
        with acting_as(stage="compute_old_log_prob"):
            put_row(recorder.tq, "9c02_0_0", 1.0)
        recorder.mark("compute_old_log_prob", 1, StageRecord("compute_old_log_prob", 1, time.time(), 2, "train", 0.01))
    return root


def test_the_next_stage_is_the_one_after_the_moment(folder: Path) -> None:
    scene = open_scene(folder / "a" / "recording")
    assert scene.next_stage == "compute_values", "verl's defaults have a critic"
    assert "next: compute_values" in show(scene, "presence").headline
    assert scene.moved(0).next_stage == "compute_old_log_prob"
    assert (
        Scene.of_recording(open_recording(folder / "a" / "recording"), stage="update_actor").next_stage
        == "update_actor"
    )
    assert "moment 2 of 2" in scene.title and "step 1 after compute_old_log_prob" in scene.title


def test_a_failure_is_judged_by_the_stage_that_failed(tmp_path: Path) -> None:
    with record(board_queue({"f3a1": [1, 0]}), tmp_path / "recording", tick=60) as recorder:
        failed = StageRecord("compute_advantage", 1, time.time(), 2, "train", 0.01, "KeyError: rm_scores")
        recorder.mark("compute_advantage", 1, failed)
        recorder.fail(KeyError("rm_scores"))
    scene = open_scene(tmp_path)
    assert scene.next_stage == "compute_advantage"
    assert show(scene, "failure").headline == "failure  KeyError: 'rm_scores'"


def test_the_failure_of_a_whole_batch_is_shown(tmp_path: Path) -> None:
    """All 512 sessions failed: the error is shown first, without asking, and the tasks do not bury it."""
    tasks = "failed tasks: 512\n" + "\n".join(f"  session u{n}_0  after 0.1 s: {'x' * 400}" for n in range(512))
    with record(board_queue({"f3a1": [1, 0]}), tmp_path / "recording", tick=60) as recorder:
        recorder.fail(KeyError("rm_scores"), tasks + "\n")
    out = io.StringIO()
    print_once(open_scene(tmp_path), [], Console(file=out, width=100))
    said = out.getvalue()
    assert "failure  KeyError: 'rm_scores'" in said and "budget" not in said
    assert said.index("failure  KeyError") < said.index("train")
    assert "... 453 more lines in tasks.txt" in said and "session u58_0" in said and "session u59_0" not in said


@pytest.mark.parametrize("name", list(VIEWS))
def test_every_view_has_something_to_say(folder: Path, name: str) -> None:
    scene = open_scene(folder, key="9c02_0_0", field="rm_scores")
    assert show(scene, name).headline
    live = Scene(board_queue({"f3a1": [1, 0]}))
    assert show(live, name).headline, "what a live queue cannot show is said"


def test_a_run_that_is_stuck_begins_with_what_it_waits_for(tmp_path: Path) -> None:
    stuck = WaitReport("sample(train, 2 prompts): 1 of 2 ready", "running 1", (), False, "Not by itself.")
    with record(board_queue({"f3a1": [1, 0]}), tmp_path / "recording", tick=60) as recorder:
        recorder.mark("submit_batch_to_rollout", 1)
        assert _first_view(open_scene(tmp_path)) == "presence"
        recorder.waiting = lambda: stuck
        recorder.mark("", 1)
    scene = open_scene(tmp_path)
    assert _first_view(scene) == "waiting"
    assert "WILL NOT END BY ITSELF" in show(scene, "waiting").headline
    assert "nobody waits" in show(scene.moved(0), "waiting").headline


def test_after_a_step_was_cleared_the_moment_before_is_shown(tmp_path: Path) -> None:
    with record(board_queue({"f3a1": [1, 0]}), tmp_path / "recording", tick=60) as recorder:
        recorder.mark("compute_metrics", 1, StageRecord("compute_metrics", 1, time.time(), 2, "train", 0.01))
        recorder.tq.kv_clear(["f3a1_0_0", "f3a1_1_0"], "train")
        recorder.mark("clear", 1, StageRecord("clear", 1, time.time(), 2, "train", 0.01))
        scene = open_scene(tmp_path)
        assert "after compute_metrics" in scene.title and "2 rows" in show(scene, "presence").text()
        screen = Screen(scene)
        put_row(recorder.tq, "9c02_0_0", 1.0)
        recorder.mark("sample", 2, StageRecord("sample", 2, time.time(), 1, "train", 0.01))
        screen.refresh()
        assert "after sample" in screen.scene.title


def test_newest_recording_below_a_folder(folder: Path, tmp_path: Path) -> None:
    with record(board_queue({"f3a1": [1, 0]}), folder / "b" / "recording", tick=60) as recorder:
        recorder.mark("sample", 1)
        later = time.time() + 5
        os.utime(folder / "b" / "recording" / "log" / "000000.jsonl", (later, later))
        assert newest_recording(folder) == (folder / "b" / "recording", "")
    assert newest_recording(folder / "a") == newest_recording(folder / "a" / "recording")
    assert newest_recording(folder / "a").path == folder / "a" / "recording"
    with pytest.raises(NothingToInspectError, match="kitlib run"):
        newest_recording(tmp_path)


def test_keys_move_through_views_and_moments(folder: Path) -> None:
    screen = Screen(open_scene(folder / "a"))
    screen.press("left")
    assert screen.scene.source.label == "sample" and not screen.follows
    screen.refresh()
    assert screen.scene.source.label == "sample", "a reader who went back stays there"
    screen.press("left")
    assert screen.scene.position == 0
    screen.press("f")
    screen.refresh()
    assert screen.scene.source.label == "compute_old_log_prob"
    screen.press("3")
    assert screen.name == screen.names[2]
    screen.press("tab")
    assert screen.name == screen.names[3] and not set(NEED_OPTION) & set(screen.names)
    screen.press("q")
    assert screen.ended
    assert split_keys("q\x1b[Cx\t") == ["q", "right", "x", "tab"]


def test_the_picture_fits_the_terminal_and_scrolls(folder: Path) -> None:
    console = Console(file=io.StringIO(), width=90, height=8, force_terminal=False)
    screen = Screen(open_scene(folder / "a"), "stages")

    def shown() -> list[str]:
        console.file = io.StringIO()
        console.print(screen.picture(console))
        return console.file.getvalue().rstrip("\n").split("\n")

    first = shown()
    assert len(first) <= 8 and "of " in first[0]
    assert "5 stages" in first[-3] and "failure" in first[-2] and first[-1].endswith("q quit")
    screen.press("page")
    assert shown()[1] != first[1] and screen.offset > 0
    screen.press("up")
    assert shown() != first


class _Page(HTMLParser):
    tags: set[str] = set()  # noqa: RUF012

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)


def test_page_has_every_view_no_script_and_no_address(folder: Path) -> None:
    html = page_of(open_scene(folder / "a"))
    page = _Page()
    page.feed(html)
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert "http" not in html and "url(" not in html and "@import" not in html
    for name in VIEWS:
        assert (f'id="{name}"' in html) is (name not in NEED_OPTION)
    assert "color-scheme: light dark" in html


def test_command_prints_once_without_a_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["inspect", str(folder / "a"), "groups", "--at", "sample:1"]) == 0
    out = capsys.readouterr().out
    assert "moment 1 of 2" in out and "1 of 1 group teach something" in out
    monkeypatch.chdir(folder / "a")
    page = tmp_path / "out.html"
    assert cli.main(["inspect", "--once", "--html", str(page)]) == 0
    assert "READY" in page.read_text() or "NOT READY" in page.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["presense"], "no view 'presense', and no file or folder of that name; did you mean presence"),
        (["--at", "9"], "--at 9: the recording has moments 1 to 2"),
        (["--at", "balance_batch"], "there are: sample, compute_old_log_prob"),
        (["--stage", "update_actors"], "did you mean update_actor"),
        (["--address", "auto"], "one source at a time"),
    ],
)
def test_a_wrong_word_is_a_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(["inspect", str(folder / "a"), *words]) == 2
    assert message in capsys.readouterr().err


def test_settings_come_from_a_file_and_from_words(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("algorithm: {adv_estimator: grpo}\ncritic: {enable: true}\n")
    recording = str(folder / "a")
    assert cli.main(["inspect", recording, "presence", "--config", str(path)]) == 0
    assert "next: compute_values" in capsys.readouterr().out
    assert cli.main(["inspect", recording, "presence", "--config", str(path), "critic.enable=false"]) == 0
    assert "next: compute_advantage" in capsys.readouterr().out
    assert cli.main(["inspect", recording, "--config", str(tmp_path / "none.yaml")]) == 2
    assert "the settings cannot be read" in capsys.readouterr().err


def test_help_names_every_view(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["inspect", "--help"])
    assert " ".join(VIEWS) in " ".join(capsys.readouterr().out.split())


def test_live_screen_in_a_real_terminal(folder: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "kitlib.cli", "inspect", str(folder / "a"), "--interval", "0.2"]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, close_fds=True)
    os.close(slave)
    try:
        seen = _read_until(master, "compute_values")
        os.write(master, b"2")
        seen += _read_until(master, "no key in more than one partition")
        os.write(master, b"q")
        seen += _read_until(master, None)
        assert process.wait(200) == 0, seen
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _read_until(fd: int, text: str | None, timeout: float = 200.0) -> str:
    """What the terminal shows until it shows a text; None: until the program has ended, which must not wait for us."""
    seen, deadline = "", time.monotonic() + timeout
    while text is None or text not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([fd], [], [], 0.2)[0]:
            try:
                seen += os.read(fd, 65536).decode(errors="replace")
            except OSError:  # nobody has the other end open any more
                assert text is None, seen
                return seen
    return seen
