"""`Report`: the findings of one look, as text, as a page, as JSON and as Python objects.

1 error, 1 warning, 0 infos   train, before compute_advantage     63 rules over 128 keys in 14 ms
finding                keys        what is wrong                                    way out
error field_missing    9c02_5_0    rm_scores is on 127 of 128 rows and absent ..    Score these rows, or ..
                                                                                    see presence
see presence(tq, "compute_advantage", config, partition_id="train") for field_missing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kitlib.inspector.doctor.examine import Examination
from kitlib.inspector.doctor.finding import SEVERITIES, Finding, few, some
from kitlib.inspector.doctor.rules import RULES
from kitlib.inspector.doctor.shown import anchor_of, call_of, panels, view_of, write_panels
from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.model import Cell, Column, Span, Table, ViewModel, cell, line
from kitlib.inspector.render.states import State
from kitlib.inspector.view import PAGE_BUDGET, View

LOOKS = {"error": State.BAD, "warning": State.WARN, "info": State.DIM}
NUM_KEYS = 4  # named in a cell


@dataclass(frozen=True)
class Report:
    """What the doctor says. Iterable; `report.findings`, `report.errors`, `report.view`, `report.as_dict()`.

    shell: what a command names as its source, where the report is read in a shell; None: hints are calls in Python.
    """

    examination: Examination
    stages: tuple[str, ...] = ()
    is_guessed: bool = False
    num_keys: Mapping[str, int] = field(default_factory=dict)
    target: Any = field(default=None, repr=False)
    config: Any = field(default=None, repr=False)
    before: Any = field(default=None, repr=False)
    global_steps: int | None = None
    shell: str | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, errors first."""
        return self.examination.findings

    @property
    def errors(self) -> tuple[Finding, ...]:
        return self.of("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self.of("warning")

    @property
    def ok(self) -> bool:
        """True if there is neither an error nor a warning."""
        return not (self.errors or self.warnings)

    def of(self, word: str) -> tuple[Finding, ...]:
        """The findings of a severity or of a kind."""
        return tuple(one for one in self.findings if word in (one.severity, one.kind))

    def __iter__(self) -> Any:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "findings": [one.as_dict() for one in self.findings],
            "failures": [vars(one) for one in self.examination.failures],
            "stages": list(self.stages),
            "keys": dict(self.num_keys),
            "checked": list(self.examination.checked),
            "skipped": [list(pair) for pair in self.examination.skipped],
            "seconds": round(self.examination.seconds, 4),
        }

    # Shown

    @cached_property
    def view(self) -> View:
        """The report as a view. Each finding names the call that shows it."""
        return View(_model(self, {}), PAGE_BUDGET)

    def text(self, width: int = 100) -> str:
        return self.view.text(width)

    @cached_property
    def _html(self) -> str:
        views = panels(self)
        anchors = {call: anchor_of(call, self) for call in views}
        return f"<div>{View(_model(self, anchors), PAGE_BUDGET).html()}{write_panels(views, anchors)}</div>"

    def html(self) -> str:
        """The findings, and below them, folded, the views that they lead to; made on the first call."""
        return self._html

    def __rich__(self) -> Any:
        return self.view.__rich__()

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}

    def view_of(self, finding: Finding) -> View:
        """The view that shows a finding, made from the same target: presence, group board, ..."""
        return view_of(self, finding)


def _model(report: Report, anchors: Mapping[str, str]) -> ViewModel:
    names = ShortNames(key for one in report.findings for key in one.keys)
    counts = {word: len(report.of(word)) for word in SEVERITIES}
    worst = next((word for word in SEVERITIES if counts[word]), None)
    verdict = ", ".join(some(number, word) for word, number in counts.items())
    head = (verdict, LOOKS[worst]) if worst in ("error", "warning") else ("nothing is wrong", State.GOOD)
    info = (verdict, State.DIM) if worst == "info" else ""
    return ViewModel(
        headline=line(head, info, (_where(report), State.PLAIN)),
        facts=cell(_checked(report), State.DIM),
        tables=(_table(report, names, anchors),) if report.findings else (),
        notes=tuple(_notes(report, names)),
    )


def _where(report: Report) -> str:
    said = " and ".join(f"before {stage}" for stage in report.stages)
    return f"{said} (guessed from the queue)" if report.is_guessed and said else said


def _checked(report: Report) -> str:
    one = report.examination
    keys = ", ".join(f"{name} {number:,}" for name, number in report.num_keys.items()) or "no partition"
    return f"{len(one.checked)} of {len(RULES)} rules over the keys of {keys} in {one.seconds * 1e3:.0f} ms"


def _table(report: Report, names: ShortNames, anchors: Mapping[str, str]) -> Table:
    columns = (
        Column("finding"),
        Column("keys", flow=True),
        Column("what is wrong", flow=True),
        Column("way out", flow=True),
    )
    calls = [call_of(report, one) for one in report.findings]
    rows = [_row(one, names, call, anchors.get(call, "")) for one, call in zip(report.findings, calls, strict=True)]
    return Table(columns, tuple(rows), row_noun="findings")


def _row(finding: Finding, names: ShortNames, call: str, anchor: str) -> tuple[Cell, ...]:
    where = [Span(str(finding.partition), State.DIM)] if finding.partition else []
    return (
        line((finding.severity, LOOKS[finding.severity]), (finding.kind, State.STRONG)),
        Cell((*names.spans(finding.keys, NUM_KEYS), *where)),
        cell(finding.says),
        Cell((Span(finding.way_out), Span(_see(call), State.DIM, anchor=anchor))),
    )


def _see(call: str) -> str:
    """`see presence`; the whole call or command stands below the table."""
    return "see below" if call.startswith("kitlib ") else f"see {call.partition('(')[0]}"


def _notes(report: Report, names: ShortNames) -> list[Cell]:
    notes = [
        cell(f"{failure.rule} could not be run: {failure.error}", State.WARN) for failure in report.examination.failures
    ]
    for one in report.findings:
        notes += [cell(f"{one.kind}: {text}", State.DIM) for text in one.evidence]
        if one.reports and one.severity != "info":
            notes.append(cell(f"{one.kind} was reported as {'; '.join(one.reports)}", State.DIM))
    kinds: dict[str, dict[str, None]] = {}
    for one in report.findings:
        kinds.setdefault(call_of(report, one), {})[one.kind] = None
    notes += [cell(f"see {call} for {few([*names_])}", State.DIM) for call, names_ in kinds.items()]
    families = sorted({rule.family for rule in RULES if rule.name in report.examination.checked})
    notes.append(cell(f"checked: {', '.join(families)}", State.DIM))
    if skipped := report.examination.skipped:
        reasons = dict.fromkeys(reason for _, reason in skipped)
        notes.append(cell(f"not run: {some(len(skipped), 'rule')} ({'; '.join(reasons)})", State.DIM))
    return [*notes, *([cell(names.note(), State.DIM)] if names.note() else [])]
