"""`kitlib inspect`: the views in a terminal, live, or once as text or as a page.

verl 0.9.1 has no counterpart. The screen follows the newest picture; keys move through views and recorded moments:

    1 .. 9, tab   view          left, right   moment          up, down, space   scroll
    f             follow        q             leave

Without a terminal the view is printed once.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
from rich.text import Text

from kitlib.inspector.page import Section, write_page
from kitlib.inspector.recording import Recording
from kitlib.inspector.scene import NEED_OPTION, VIEWS, Scene, newest_position, show

KEYS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\t": "tab", " ": "page", "\x03": "q"}


def page_of(scene: Scene, names: Sequence[str] = ()) -> str:
    """The named views (default: all that need no further word) on one page."""
    chosen = names or [name for name in VIEWS if name not in NEED_OPTION]
    text = "\n".join(filter(None, [scene.title, scene.passed_over]))
    return write_page([Section(name, show(scene, name)) for name in chosen], "kitlib inspect", text)


def print_once(scene: Scene, names: Sequence[str], console: Console, html: Path | None = None) -> None:
    """Print views, or write them to a page."""
    if html is not None:
        html.write_text(page_of(scene, names), encoding="utf-8")
        console.print(f"{html}  {html.stat().st_size / 1000:.0f} KB", highlight=False, soft_wrap=True)
        return
    for said in filter(None, [scene.title, scene.passed_over]):
        console.print(Text(said, style="dim"), soft_wrap=True)
    failed = ["failure"] if isinstance(scene.recording, Recording) and scene.recording.failure else []
    for name in names or [*failed, "partitions", "presence"]:
        console.print()
        console.print(show(scene, name))


class Screen:
    """What is on the screen: a scene, one view of it, how far it is scrolled."""

    def __init__(self, scene: Scene, name: str = "presence") -> None:
        self.scene, self.name = scene, name
        self.names = [one for one in VIEWS if one not in NEED_OPTION or _has_option(scene, one)]
        self.offset, self.follows, self.ended = 0, True, False

    def refresh(self) -> None:
        """Read on, and show the newest moment if the screen follows."""
        recording = self.scene.recording
        if recording is not None:
            recording.refresh()
            if self.follows:
                self.scene = self.scene.moved(newest_position(recording))

    def press(self, key: str) -> None:
        """Do what a key asks for; other keys do nothing."""
        if key == "q":
            self.ended = True
        elif key == "f":
            self.follows = True
        elif key in ("left", "right"):
            self._move(-1 if key == "left" else 1)
        elif key in ("up", "down", "page"):
            self.offset = max(0, self.offset + {"up": -1, "down": 1, "page": 20}[key])
        elif key == "tab":
            self._choose((self.names.index(self.name) + 1) % len(self.names))
        elif key.isdigit() and 0 < int(key) <= len(self.names):
            self._choose(int(key) - 1)

    def _choose(self, number: int) -> None:
        self.name, self.offset = self.names[number], 0

    def _move(self, by: int) -> None:
        recording = self.scene.recording
        if recording is not None:
            total = len(recording.moments)
            self.scene = self.scene.moved(min(max(self.scene.position % total + by, 0), total - 1))
            self.follows = False

    def picture(self, console: Console) -> RenderableType:
        """Title and what was passed over, the view cut to the height of the terminal, the views to choose from, the
        line of keys."""
        lines = console.render_lines(show(self.scene, self.name), pad=False)
        menu = self._menu(console.width)
        height = max(console.height - 3 - len(menu) - bool(self.scene.passed_over), 1)
        self.offset = min(self.offset, max(len(lines) - height, 0))
        shown = lines[self.offset : self.offset + height]
        body = Segments([segment for one in shown for segment in (*one, Segment.line())])
        left_out = len(lines) - len(shown)
        more = f"lines {self.offset + 1}..{self.offset + len(shown)} of {len(lines)}  " if left_out > 0 else ""
        said = filter(None, [more + self.scene.title, self.scene.passed_over])
        head = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in said]
        return Group(*head, body, *menu, self._keys())

    def _menu(self, width: int) -> list[Text]:
        """The views by their keys, in as many lines as they need; those after the ninth are reached with tab."""
        lines = [Text()]
        for number, name in enumerate(self.names, start=1):
            entry = Text(f"{number} " if number < 10 else "", "dim", end="")
            entry.append(name, "reverse" if name == self.name else "not dim")
            if lines[-1] and len(lines[-1]) + len(entry) + 2 > width:
                lines.append(Text())
            lines[-1].append("  " if lines[-1] else "").append_text(entry)
        return lines

    def _keys(self) -> Text:
        follow = "following" if self.follows else "f follow"
        keys = f"tab next view  ←→ moment  ↑↓ space scroll  {follow}  q quit"
        return Text(keys, "dim", no_wrap=True, overflow="ellipsis")


def _has_option(scene: Scene, name: str) -> bool:
    return bool(scene.key if name in ("key", "tokens") else scene.field)


def watch_screen(scene: Scene, name: str, console: Console, interval: float = 1.0) -> None:
    """Show the scene until q or Ctrl-C."""
    screen = Screen(scene, name)
    with _raw_keys() as wait, Live(console=console, screen=True, auto_refresh=False) as live:
        while not screen.ended:
            screen.refresh()
            live.update(screen.picture(console), refresh=True)
            for key in wait(interval):
                screen.press(key)


@contextlib.contextmanager
def _raw_keys() -> Iterator[Callable[[float], list[str]]]:
    """A function that waits for keys for some seconds and gives their names; no echo, no return key needed."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def wait(seconds: float) -> list[str]:
        ready, _, _ = select.select([fd], [], [], seconds)
        return split_keys(os.read(fd, 64).decode(errors="replace")) if ready else []

    try:
        tty.setcbreak(fd)
        yield wait
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def split_keys(text: str) -> list[str]:
    """Names of the keys in what a terminal has sent."""
    keys = []
    while text:
        code = next((code for code in KEYS if text.startswith(code)), text[0])
        keys.append(KEYS.get(code, code))
        text = text[len(code) :]
    return keys
