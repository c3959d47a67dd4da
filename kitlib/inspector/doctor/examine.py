"""Run the rules over a situation: what they found, what was checked, and which rule could not be run.

verl 0.9.1 has no counterpart. A rule that raises is reported as such and the others go on: a broken rule must not
hide the findings of the others, and the doctor must not be the reason that a run stops.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from kitlib.inspector.doctor.finding import Finding
from kitlib.inspector.doctor.known_reports import reports_of
from kitlib.inspector.doctor.rules import RULES, Rule
from kitlib.inspector.doctor.situation import Situation


@dataclass(frozen=True)
class Failure:
    """A rule that raised. It says nothing about the queue, but it checked nothing either."""

    rule: str
    error: str


@dataclass(frozen=True)
class Examination:
    """findings: errors first. failures: rules that raised. skipped: families or rules that were not run, and why."""

    findings: tuple[Finding, ...]
    failures: tuple[Failure, ...]
    checked: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    seconds: float


def examine(situation: Situation, *, values: bool = True, without: Collection[str] = ()) -> Examination:
    """Run every rule.

    values: False leaves out the rules that read values. without: names of rules, kinds or families to leave out.
    """
    began = time.perf_counter()
    findings: list[Finding] = []
    failures: list[Failure] = []
    checked: list[str] = []
    skipped: list[tuple[str, str]] = []
    for rule in RULES:
        reason = _why_not(rule, situation, values, without)
        if reason:
            skipped.append((rule.name, reason))
            continue
        try:
            found = list(rule.check(situation))
        except Exception as error:  # noqa: BLE001 - whatever a rule raises, the others must go on
            failures.append(Failure(rule.name, f"{type(error).__name__}: {error}"))
            continue
        checked.append(rule.name)
        findings += [replace(one, reports=reports_of(one.kind)) for one in found if one.kind not in without]
    findings.sort(key=lambda finding: finding.rank)
    return Examination(tuple(findings), tuple(failures), tuple(checked), tuple(skipped), time.perf_counter() - began)


def joined(parts: Sequence[Examination]) -> Examination:
    """Several looks at one queue as one: every finding once, errors first; run if it ran anywhere."""
    findings: dict[tuple[object, ...], Finding] = {}
    for one in (finding for part in parts for finding in part.findings):
        findings.setdefault((one.kind, one.partition, one.keys, one.fields), one)
    checked = tuple(dict.fromkeys(name for part in parts for name in part.checked))
    return Examination(
        tuple(sorted(findings.values(), key=lambda finding: finding.rank)),
        tuple(dict.fromkeys(failure for part in parts for failure in part.failures)),
        checked,
        tuple(dict.fromkeys(pair for part in parts for pair in part.skipped if pair[0] not in checked)),
        sum(part.seconds for part in parts),
    )


def _why_not(rule: Rule, situation: Situation, values: bool, without: Collection[str]) -> str:
    if rule.name in without or rule.family in without:
        return "switched off"
    if rule.values and not values:
        return "rules that read values are switched off"
    if rule.values and not situation.has_values:
        return "reads values, and a snapshot holds none"
    return ""
