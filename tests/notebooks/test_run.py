"""The notebooks do what they say: from anywhere, twice in one kernel, on another day, quietly, in the time that they
state, with every exercise solved.

Kernels start warm (see warm.py). `make test` runs every notebook once more in a cold one, by nbmake.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell

from tests.notebooks.reading import NAMES, PATHS, is_exercise, minutes_stated, read, solve
from tests.notebooks.running import printed_by, run
from tests.notebooks.warm import IMPORT_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BY_NAME = dict(zip(NAMES, PATHS, strict=True))
USUAL_IMPORT_SECONDS = 5.0  # on the machines that the minutes are stated for; a slower one has more of both
MEASURE = f"""
import os, resource
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(part.ru_utime + part.ru_stime for part in used), os.environ["{IMPORT_SECONDS}"])
"""
ANOTHER_DAY = """
import datetime, time
def later(now=time.time): return now() + 400 * 86400
class Date(datetime.date):
    today = classmethod(lambda cls: cls.fromtimestamp(later()))
class DateTime(datetime.datetime):
    now = classmethod(lambda cls, tz=None: cls.fromtimestamp(later(), tz))
time.time, datetime.date, datetime.datetime = later, Date, DateTime
"""


@pytest.mark.parametrize("name", NAMES)
def test_solved_twice_in_one_kernel_from_elsewhere_the_second_time_on_another_day(
    name: str, tmp_path: Path, kernels: Any
) -> None:
    notebook = read(BY_NAME[name])
    num_exercises = solve(notebook)
    minutes = minutes_stated(notebook)
    once, measured = list(notebook.cells), new_code_cell(MEASURE)
    again = [new_code_cell(cell.source, metadata=cell.metadata) for cell in once if is_code(cell)]
    notebook.cells = [*once, measured, new_code_cell(ANOTHER_DAY), *again]
    run(notebook, tmp_path, kernels)
    said = [text_of(cell) for cell in notebook.cells if is_code(cell) and is_exercise(cell)]
    assert len(said) == 2 * num_exercises
    assert all("RIGHT" in text for text in said), said
    noise = [cell.source for cell in notebook.cells if is_code(cell) and stderr_of(cell)]
    assert not noise, f"something was printed to stderr by: {noise}"
    assert not list(tmp_path.iterdir()), "a notebook leaves no file behind"
    used, spared = map(float, printed_by(measured).split())
    seconds, slowness = used + spared, max(1.0, spared / USUAL_IMPORT_SECONDS)
    assert 1 < seconds <= 2 * 60 * minutes * slowness, f"{seconds:.0f} s of CPU, and the first cell says {minutes} min"
    print(f"{name}: {seconds:.1f} s of CPU, imports included; {spared:.1f} s for imports that every notebook needs")


def test_the_clock_of_another_day(tmp_path: Path, kernels: Any) -> None:
    """Whoever asks what time it is gets another answer."""
    ask = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp(), datetime.date.today())"
    notebook = read(PATHS[0])
    notebook.cells = [new_code_cell(ask), new_code_cell(ANOTHER_DAY), new_code_cell(ask)]
    run(notebook, tmp_path, kernels)
    before, after = (printed_by(notebook.cells[number]).split() for number in (0, 2))
    assert float(after[0]) - float(before[0]) > 399 * 86400
    assert float(after[1]) - float(before[1]) > 399 * 86400
    assert before[2] != after[2]


def is_code(cell: Any) -> bool:
    return cell.cell_type == "code"


def text_of(cell: Any) -> str:
    return "\n".join(output.data.get("text/plain", "") for output in cell.outputs if "data" in output)


def stderr_of(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.get("name") == "stderr")
