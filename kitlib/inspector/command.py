"""The command `kitlib inspect`: which source, which views, on a screen, as text or as a page.

verl 0.9.1 has no counterpart.

    kitlib inspect                               the newest recording below this folder, followed on the screen
    kitlib inspect runs/x/recording groups       a recording, beginning with one view
    kitlib inspect tokens --key f3a1_0_0         one trajectory, its text by the tokenizer of the run's model
    kitlib inspect --once presence bytes         print and end
    kitlib inspect --once --html out.html        one page with every view
    kitlib inspect --address auto algorithm.adv_estimator=grpo
                                                 the queue of a live run on Ray, read-only; words key=value, or --config
                                                 FILE, tell its settings (default: verl's)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from kitlib.inspector.judgement import check_stage
from kitlib.inspector.recording import Recording
from kitlib.inspector.run_tokenizer import open_tokenizer
from kitlib.inspector.scene import VIEWS, NothingToInspectError, Scene, open_scene, show
from kitlib.inspector.terminal import print_once, watch_screen


def run_inspect(args: argparse.Namespace) -> int:
    """`kitlib inspect`. Raises NothingToInspectError, RecordingError, QueueRuntimeError."""
    given = [*args.words, *args.overrides]  # words before and after options
    words = [word for word in given if "=" not in word]
    paths = [word for word in words if word not in VIEWS and Path(word).exists()]
    names = [word for word in words if word not in paths]
    if len(paths) > 1 or (paths and args.address):
        raise NothingToInspectError(f"one source at a time: {', '.join([*paths, *filter(None, [args.address])])}")
    if args.stage is not None:
        check_stage(args.stage)
    asked = {"stage": args.stage, "partition_id": args.partition, "key": args.key, "field": args.field}
    if args.tokenizer is not None:
        open_tokenizer(args.tokenizer)  # a folder without one is told at once
        asked["tokenizer"] = args.tokenizer
    asked["settings"] = read_settings(args.config, [word for word in given if "=" in word])
    scene = _live(args, asked) if args.address else open_scene(paths[0] if paths else None, **asked)
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


def _live(args: argparse.Namespace, asked: dict[str, Any]) -> Scene:
    from kitlib.transfer_queue.package import attach, connect

    source = attach(args.address)  # first: connect would start a queue where there is none
    return Scene(connect() if args.values else source, **asked)


def read_settings(file: str | None, words: Sequence[str]) -> dict[str, Any] | None:
    """Nested settings of a YAML file (Hydra's .hydra/config.yaml is one) and of words key=value, which win."""
    if file is None and not words:
        return None
    try:
        tree = yaml.safe_load(Path(file).read_text(encoding="utf-8")) if file is not None else {}
        pairs = [(word.split("=", 1)[0], yaml.safe_load(word.split("=", 1)[1])) for word in words]
    except (OSError, yaml.YAMLError) as error:
        raise NothingToInspectError(f"the settings cannot be read: {' '.join(str(error).split())}") from error
    for key, value in pairs:
        node = tree
        *groups, name = key.split(".")
        for group in groups:
            node = node.setdefault(group, {})
        node[name] = value
    return tree


def _first_view(scene: Scene) -> str:
    """The failure of a run that has failed, the wait of one that is stuck, else the queue."""
    recording = scene.recording
    if not isinstance(recording, Recording):
        return "presence"
    wait = recording.waiting_at(recording.last)
    return "failure" if recording.failure else "waiting" if wait is not None and not wait.can_end else "presence"


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
