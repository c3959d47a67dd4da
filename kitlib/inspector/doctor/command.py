"""`kitlib doctor`: the doctor in a terminal.

    kitlib doctor                           the newest recording below this folder
    kitlib doctor FILE                      a recording, the folder of a run, a snapshot, a case file
    kitlib doctor --address ADDRESS         the queue of a live run on Ray; auto: the cluster on this machine
    kitlib doctor --json --case FILE ..     one JSON object a line and case file

Exit status 0 without an error, 1 with one, 2 if the question was refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from kitlib.inspector.doctor.case_file import CaseFileError, read_case, situation_of
from kitlib.inspector.doctor.diagnose import doctor
from kitlib.inspector.doctor.examine import examine
from kitlib.inspector.doctor.finding import Finding
from kitlib.inspector.doctor.report import Report
from kitlib.inspector.newest import NothingToInspectError, newest_recording
from kitlib.inspector.recording import Moment
from kitlib.transfer_queue import QueueSnapshot

FOUND, REFUSED = 1, 2
CASE_NAMES = ("kind", "severity", "keys", "fields", "numbers", "says", "way_out")


def run_doctor(args: argparse.Namespace) -> int:
    """Run the command; the return value is the exit status."""
    if args.case:
        return _cases([Path(name) for name in args.files], not args.no_values)
    reports = [*_reports(args)]
    for report in reports:
        print(json.dumps(report.as_dict(), default=str) if args.json else _text(report))
    return FOUND if any(report.errors for report in reports) else 0


def _reports(args: argparse.Namespace) -> Iterable[Report]:
    arguments: dict[str, Any] = {
        "stage": args.stage,
        "config": _config(args.config),
        "global_steps": args.step,
        "values": not args.no_values,
    }
    for name in args.files or ([] if args.address else ["."]):
        if not Path(name).exists():
            raise NothingToInspectError(f"there is no file or folder {name!r} to look into")
        yield in_shell(doctor(run := chosen_run(name), **arguments), str(run), args.config)
    if args.address:
        from kitlib.inspector.doctor.live import attached, look_twice

        report = look_twice(attached(args.address, not args.no_values), **arguments)
        yield in_shell(report, f"--address {args.address}", args.config)


def in_shell(report: Report, source: str, config: str | None) -> Report:
    """With commands for hints; `kitlib inspect` opens no snapshot and no case file, so theirs stay calls."""
    if isinstance(report.target, QueueSnapshot):
        return report
    return replace(report, shell=source_words(source, config))


def source_words(source: str, config: str | None) -> str:
    """What a command names to look at the same."""
    words = source if source.startswith("--") else quote(source)
    return words if config is None else f"{words} --config {quote(config)}"


def chosen_run(name: str) -> str | Path:
    """The newest recording of a folder, said on stderr if newer runs were passed over; a file is what it is."""
    if not Path(name).is_dir():
        return name
    found = newest_recording(name)
    if found.passed_over:
        print(f"kitlib: {found.passed_over}", file=sys.stderr)
    return found.path


def _cases(paths: list[Path], values: bool) -> int:
    status = 0
    for path in paths:
        try:
            raw = read_case(path)
            found = examine(situation_of(raw), values=values)
        except (CaseFileError, KeyError, TypeError, ValueError) as error:
            print(f"kitlib: {path}: no case file ({error!r})", file=sys.stderr)
            status = REFUSED
            continue
        print(
            json.dumps(
                {"id": raw.get("id", path.stem), "findings": [_plain(one) for one in found.findings]}, default=str
            )
        )
        for failure in found.failures:
            print(f"kitlib: {path}: {failure.rule} could not be run: {failure.error}", file=sys.stderr)
        if not status and any(one.severity == "error" for one in found.findings):
            status = FOUND
    return status


def _plain(finding: Finding) -> dict[str, Any]:
    whole = finding.as_dict()
    return {name: whole[name] for name in CASE_NAMES}


def _text(report: Report) -> str:
    import shutil

    moment = report.target if isinstance(report.target, Moment) else None
    title = f"{moment}  {moment.folder}\n" if moment is not None else ""
    return title + report.text(max(60, shutil.get_terminal_size((120, 24)).columns))


def _config(path: str | None) -> Any:
    if path is None:
        return None
    from kitlib.inspector.recorded_config import RecordedConfig

    return RecordedConfig(Path(path).read_text(encoding="utf-8"))
