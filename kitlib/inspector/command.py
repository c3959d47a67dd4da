"""The command `kitlib inspect`: which source, which views, on a screen, as text or as a page.

kitlib inspect                               the newest recording below this folder, followed on the screen
kitlib inspect runs/x/recording groups       a recording, beginning with one view
kitlib inspect --address auto                the queue of a live run on Ray (verl's, or kitlib's), read-only
kitlib inspect --once presence bytes         print and end
kitlib inspect --once --html out.html        one page with every view
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from kitlib.inspector.judgement import check_stage
from kitlib.inspector.recording import Recording
from kitlib.inspector.scene import VIEWS, NothingToInspectError, Scene, open_scene, show
from kitlib.inspector.terminal import print_once, watch_screen


def run_inspect(args: argparse.Namespace) -> int:
    """`kitlib inspect`. Raises NothingToInspectError, RecordingError, QueueRuntimeError."""
    paths = [word for word in args.words if word not in VIEWS and Path(word).exists()]
    names = [word for word in args.words if word not in paths]
    if len(paths) > 1 or (paths and args.address):
        raise NothingToInspectError(f"one source at a time: {', '.join([*paths, *filter(None, [args.address])])}")
    if args.stage is not None:
        check_stage(args.stage)
    asked = {"stage": args.stage, "partition_id": args.partition, "key": args.key, "field": args.field}
    scene = _live(args.address, asked) if args.address else open_scene(paths[0] if paths else None, **asked)
    if args.at is not None:
        scene = _moved(scene, args.at)
    for name in names:
        show(scene, name)  # a name that is no view, or a word that is neither view nor path, is told at once
    console = Console()
    if args.once or args.html or not (sys.stdin.isatty() and console.is_terminal):
        print_once(scene, names, console, Path(args.html) if args.html else None)
    else:
        watch_screen(scene, names[0] if names else _first_view(scene), console, args.interval)
    return 0


def _live(address: str, asked: dict[str, Any]) -> Scene:
    from kitlib.transfer_queue.package import attach

    return Scene(attach(address), **asked)


def _first_view(scene: Scene) -> str:
    return "failure" if isinstance(scene.recording, Recording) and scene.recording.failure else "presence"


def _moved(scene: Scene, at: str) -> Scene:
    """To `compute_advantage`, `compute_advantage:3` (its step), or a number as the title counts moments."""
    if scene.recording is None:
        raise NothingToInspectError("--at names a recorded moment; a live queue has one: now")
    moments = scene.recording.moments
    if at.isdigit():
        if not 0 < int(at) <= len(moments):
            raise NothingToInspectError(f"--at {at}: the recording has moments 1 to {len(moments)}")
        return scene.moved(int(at) - 1)
    label, _, step = at.partition(":")
    return scene.moved(moments.index(scene.recording.find(label, int(step) if step.isdigit() else None)))
