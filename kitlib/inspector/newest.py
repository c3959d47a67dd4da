"""Which run is meant where none is named: the newest one below a folder that has recorded something.

verl 0.9.1 has no counterpart. A run that ended at its start leaves a folder, too, and that one is the newest; to look
into its empty queue would answer nothing. It is passed over, and that is said, with its error.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import NamedTuple

from kitlib.errors import KitError
from kitlib.inspector.recorded_config import RecordedConfig
from kitlib.inspector.recording import open_recording
from kitlib.inspector.recording_files import CONFIG, HEADER, LOG, SNAPSHOTS, numbered
from kitlib.transfer_queue import load_snapshot


class NothingToInspectError(KitError):
    """No recording where one was looked for, no such view, or a view that needs what is not there."""


class Newest(NamedTuple):
    """path: a recording. passed_over: a line about newer runs without one, "" if there is none."""

    path: Path
    passed_over: str


def newest_recording(root: str | Path = ".") -> Newest:
    """The recording below `root` that was written to last and holds something; if none does, the newest one.

    Raises NothingToInspectError if there is no recording at all.
    """
    root = Path(root)
    places = [root, *root.glob("recording*"), *root.glob("*/recording*"), *root.glob("runs/*/recording*")]
    found = sorted({place for place in places if (place / HEADER).exists()}, key=_written_at, reverse=True)
    if not found:
        raise NothingToInspectError(
            f"no recording in {root.resolve()}: `kitlib run` writes one to runs/<time>/recording (kitlib.record=true); "
            "name a folder, or use --address for a run on Ray"
        )
    chosen = next(filter(_has_rows, found), found[0])
    newer = [*found[: found.index(chosen)], *_runs_without(root, found, _written_at(chosen))]
    return Newest(chosen, _told(newer, chosen))


def newest_or_warn(root: str | Path) -> Path:
    """The same for callers in Python: what was passed over is a warning."""
    found = newest_recording(root)
    if found.passed_over:
        warnings.warn(found.passed_over, stacklevel=2)
    return found.path


def _written_at(place: Path) -> float:
    log = place / LOG
    return max(path.stat().st_mtime for path in [place, *(log if log.is_dir() else place).iterdir()])


def _has_rows(place: Path) -> bool:
    """True if a call named a key, or a picture shows one. Reads no further than to the first."""
    for path in sorted((place / LOG).glob("*.jsonl")):
        with open(path, encoding="utf-8") as file:
            if any(_names_a_key(place, line) for line in file if line.endswith("\n")):
                return True
    return False


def _names_a_key(place: Path, line: str) -> bool:
    try:
        said = json.loads(line)
    except ValueError:
        return True  # whoever opens it tells what is wrong
    if (picture := said.get("mark", {}).get("picture")) is None:
        return bool(said.get("event", {}).get("keys"))
    path = numbered(place, SNAPSHOTS, picture)
    return path.exists() and any(part.keys for part in load_snapshot(path).partitions.values())


def _runs_without(root: Path, recordings: list[Path], since: float) -> list[Path]:
    """Folders of later runs in which nothing was recorded, the newest first."""
    with_one = {place.parent for place in recordings}
    runs = {file.parent for file in [*root.glob(f"*/{CONFIG}"), *root.glob(f"runs/*/{CONFIG}")]}
    later = [run for run in runs - with_one - set(recordings) if _written_at(run) > since]
    return sorted(later, key=_written_at, reverse=True)


def _told(newer: list[Path], chosen: Path) -> str:
    if not newer:
        return ""
    first = max(newer, key=_written_at)
    others = f" ({len(newer) - 1} more)" if len(newer) > 1 else ""
    return f"{first} is newer and was passed over{others}: {_why(first)}. This is {chosen}"


def _why(place: Path) -> str:
    """What is known of a run that has recorded nothing."""
    if (place / HEADER).exists():
        error = open_recording(place).error
        return f"it failed before there was a row in its queue, {error}" if error else "its queue has had no row yet"
    config = RecordedConfig((place / CONFIG).read_text(encoding="utf-8"))
    if config.select("trainer.use_v1", True) is False:
        return "it is V0 (trainer.use_v1=false), which has no queue"
    if config.select("kitlib.record", True) is False:
        return "it was not recorded (kitlib.record=false)"
    return "it has no recording"
