"""The root cause behind an exception or a log: the first error that was raised, not the last one that is printed.

A worker's error reaches the terminal wrapped several times: by the task that awaited it, by Ray (RayTaskError carries
the text of the worker's traceback), by the trainer. Python prints chained tracebacks in the order of time, so the
first one of a chain is the cause.
"""

from __future__ import annotations

import re
from pathlib import Path

# The last line of a traceback: `package.Error: message`, or the bare name of the error.
_ERROR_LINE = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))(?::\s?(?P<text>.*))?$")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_HEAD = re.compile(r"Traceback \(most recent call last\)")
_AROUND = ("RayTaskError", "RayActorError", "ActorDiedError")


def root_cause(error: BaseException | str) -> str:
    """`TypeError: message (file.py, line 12, in name)` of the first error in the chain."""
    if isinstance(error, str):
        return _of_text(error)
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        error = following if following is not None else error
    first = seen[-1]
    if any(name in type(first).__name__ for name in _AROUND) or "Traceback (most recent" in str(first):
        return _of_text(str(first))
    return f"{type(first).__name__}: {first}{_place(first)}"


def _place(error: BaseException) -> str:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return ""
    code = frame.tb_frame.f_code
    return f" ({code.co_filename}, line {frame.tb_lineno}, in {code.co_name})"


def _of_text(text: str) -> str:
    """The error of the first traceback of a log; its last line if there is no traceback."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _HEAD.search(line)), 0)
    place = ""
    for line in lines[start:]:
        if frame := _FRAME.match(_bare(line)):
            place = f" ({frame['file']}, line {frame['line']}, in {frame['name']})"
        elif (found := _ERROR_LINE.match(_bare(line))) and not any(name in found["type"] for name in _AROUND):
            return f"{found['type']}: {found['text'] or ''}{place}".rstrip()
    return next((line for line in reversed(lines) if line.strip()), "an empty log").strip()


def _bare(line: str) -> str:
    """A line of Ray's log without the name of its process."""
    return re.sub(r"^\([\w.]+ pid=\d+[^)]*\)\s", "", line)


def first_failed_task(tasks: str) -> str:
    """The first task that a recording's list of tasks calls failed, with its error; "" if there is none."""
    _, _, failed = tasks.partition("failed tasks:")
    return next((line.strip() for line in failed.splitlines()[1:] if line.strip()), "")


def first_traceback(logs: Path) -> str | None:
    """The text of a log with a traceback; of several the one that ended first. None if there is none.

    logs: a file, or a folder such as Ray's session_latest/logs (worker-*.err, python-core-worker-*.log, ...).
    """
    if logs.is_file():
        return logs.read_text(encoding="utf-8", errors="replace")
    files = sorted((path for path in logs.rglob("*") if path.is_file()), key=lambda path: path.stat().st_mtime)
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        if _HEAD.search(text):
            return text
    return None
