"""Hold the findings of an examination against what a case expects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kitlib.inspector.doctor.finding import Finding

CLOSE = 2e-4  # floats of the case files have four decimals


def complaints(raw: dict[str, Any], findings: Iterable[Finding]) -> list[str]:
    """What is wrong with these findings for this case; empty when they are right.

    `and` of an expectation: other findings that must be there too, with their keys and fields.
    """
    findings = list(findings)
    expect = raw["expect"]
    further = expect.get("and") or ()
    allowed = {expect["finding"], *(expect.get("also") or ()), *(one["finding"] for one in further)}
    out = [
        f"false alarm: {one.severity} {one.kind} {one.keys}: {one.says}"
        for one in findings
        if one.severity != "info" and one.kind not in allowed
    ]
    seen = {(one.kind, frozenset(one.keys), frozenset(one.fields)) for one in findings}
    wanted = {(one["finding"], frozenset(one["keys"]), frozenset(one["fields"])) for one in further}
    out += [f"{kind} of {sorted(keys)} {sorted(fields)} was not found" for kind, keys, fields in wanted - seen]
    if expect["finding"] is None:
        return out
    found = [one for one in findings if one.kind == expect["finding"]]
    if not found:
        return [*out, f"{expect['finding']} was not found; found: {[one.kind for one in findings]}"]
    exact = [one for one in found if set(one.keys) == set(expect["keys"]) and set(one.fields) == set(expect["fields"])]
    if not exact:
        right = f"{expect['keys']} {expect['fields']}"
        return [*out, *(f"{one.kind} names {one.keys} {one.fields}, not {right}" for one in found)]
    return [*out, *_numbers(expect, exact[0])]


def _numbers(expect: dict[str, Any], finding: Finding) -> list[str]:
    out = [] if finding.severity == expect["severity"] else [f"severity {finding.severity}, not {expect['severity']}"]
    for name, value in expect["numbers"].items():
        got = finding.numbers.get(name)
        same = got == pytest.approx(value, abs=CLOSE) if isinstance(value, float) and got is not None else got == value
        out += [] if same else [f"{name} is {got!r}, not {value!r}"]
    return out
