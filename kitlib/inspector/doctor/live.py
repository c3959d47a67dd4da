"""A look at a run that somebody else started: attach, look twice, report what stays.

verl 0.9.1 with the TransferQueue package on Ray. A run moves while one looks: a put registers its keys before its
data arrives, a prompt is `running` with all its rows for a moment. So the doctor looks twice, some seconds apart, and
reports what both looks show. Nothing is written, cleared or closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from time import sleep
from typing import Any

from kitlib.inspector.doctor.diagnose import doctor
from kitlib.inspector.doctor.examine import Examination
from kitlib.inspector.doctor.finding import Finding
from kitlib.inspector.doctor.report import Report

PAUSE = 3.0  # seconds between the two looks
PATIENCE = 15.0  # seconds after which a prompt without a new row is worth a warning


def attached(address: str = "auto", values: bool = True) -> Any:
    """The queue of a running cluster. With values, reads go through the package's own client.

    Raises QueueRuntimeError that says what to do if there is no cluster, no queue, or no permission.
    """
    from kitlib.transfer_queue.package import attach, connect

    queue = attach(address)
    return connect() if values else queue


def look_twice(queue: Any, pause: float = PAUSE, **arguments: Any) -> Report:
    """Two looks, and of their findings those that both show. arguments: those of `doctor`."""
    first = doctor(queue, **arguments)
    sleep(pause)
    second = doctor(queue, **arguments)
    steady = tuple(one for one in second if _seen_before(one, first.findings))
    if any(_may_be_slow(one) for one in steady):
        sleep(PATIENCE)
        third = doctor(queue, **arguments)
        moved = third.num_keys != second.num_keys
        steady = tuple(one for one in steady if not _may_be_slow(one) or (not moved and _seen_before(one, third)))
    found = second.examination
    examination = Examination(
        steady, found.failures, found.checked, found.skipped, first.examination.seconds + found.seconds
    )
    return replace(second, examination=examination)


def _may_be_slow(finding: Finding) -> bool:
    """A prompt that waits for sessions: generation may take its time."""
    return finding.kind == "stuck_prompt" and finding.severity == "warning"


def _seen_before(finding: Finding, other: Iterable[Finding]) -> bool:
    """True if another look has a finding of this kind about one of its keys."""
    alike = [one for one in other if (one.kind, one.partition) == (finding.kind, finding.partition)]
    keys = {key for one in alike for key in one.keys}
    return bool(alike) and (not finding.keys or bool(keys & set(finding.keys)))
