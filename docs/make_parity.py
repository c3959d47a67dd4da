"""Fills the parity table of docs/store.md from a run of the conformance tests: python docs/make_parity.py

Needs the extra `ray` (ray and the TransferQueue package). Every test below runs once on the package and once on the
queue of kitlib; a row of the table is one test, its name is the behaviour. Extra arguments go to pytest.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE / "store.md"
BEGIN, END = "<!-- parity table: made by docs/make_parity.py -->\n", "<!-- end of the parity table -->"
BACKENDS = ("package", "local")
SUITES = {
    "test_verbs.py::TestPut": "kv_put, kv_batch_put",
    "test_verbs.py::TestGet": "kv_batch_get",
    "test_verbs.py::TestGetByMeta": "kv_batch_get_by_meta",
    "test_verbs.py::TestListAndClear": "kv_list, kv_clear",
    "test_verbs.py": "async_ twins",
    "test_layout.py": "what comes back as what",
    "test_conformance.py": "all verbs",
}
# Tests without the two backends as a parameter: what stands for "both do the same".
PAIRS = {"test_the_in_process_queue_does_what_the_package_does": "60 random sequences of verbs, both at once"}


@dataclass
class Outcomes:
    """Collects {(suite, test): {backend: all its cases passed}} while pytest runs."""

    table: dict[tuple[str, str], dict[str, bool]] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        path, _, case = report.nodeid.partition("::")
        name, _, parameters = case.partition("[")
        group, _, test = name.rpartition("::")
        suite = f"{Path(path).name}::{group}" if group else Path(path).name
        named = [backend for backend in BACKENDS if backend in parameters.rstrip("]").split("-")]
        for backend in named or (BACKENDS if test in PAIRS else ()):
            row = self.table.setdefault((suite, test), {})
            row[backend] = row.get(backend, True) and report.passed


def table_of(outcomes: Outcomes) -> str:
    """The table as Markdown."""
    lines = ["| verb | behaviour | package 0.1.11 | kitlib |", "|---|---|---|---|"]
    for suite, verbs in SUITES.items():
        for (own, test), results in outcomes.table.items():
            if own == suite:
                words = PAIRS.get(test, test.removeprefix("test_").replace("_", " "))
                marks = ["yes" if results[backend] else "no" for backend in BACKENDS]
                lines.append(f"| {verbs} | {words} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    outcomes = Outcomes()
    files = sorted({str(HERE.parent / "tests" / "transfer_queue" / suite.partition("::")[0]) for suite in SUITES})
    code = pytest.main(["-q", "-rN", *files, *sys.argv[1:]], plugins=[outcomes])
    lacking = [test for (_, test), results in outcomes.table.items() if set(results) != set(BACKENDS)]
    if not outcomes.table or lacking:
        print(f"not run on both backends, the page is left as it is: {lacking or 'nothing ran'}", file=sys.stderr)
        return 1
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE} has no line {BEGIN!r}"
    assert end, f"{PAGE} has no line {END!r}"
    PAGE.write_text(before + BEGIN + "\n" + table_of(outcomes) + "\n" + END + after, encoding="utf-8")
    print(f"{PAGE}: {len(outcomes.table)} behaviours")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
