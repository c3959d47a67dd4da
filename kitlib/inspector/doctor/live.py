"""A look at a run that somebody else started: attach, look twice, report what stays.

verl 0.9.1 with the TransferQueue package on Ray. A run moves while one looks: a put registers its keys before its
data arrives, a prompt is `running` with all its rows for a moment. So the doctor looks twice, some seconds apart, and
reports what both looks show. Nothing is written, cleared or closed.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from kitlib.inspector.doctor.diagnose import doctor
from kitlib.inspector.doctor.examine import Examination
from kitlib.inspector.doctor.finding import Finding
from kitlib.inspector.doctor.report import Report

PAUSE = 3.0  # seconds between the two looks


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
    time.sleep(pause)
    second = doctor(queue, **arguments)
    steady = tuple(kept for one in second if (kept := _seen_before(one, first.findings)) is not None)
    found = second.examination
    examination = Examination(
        steady, found.failures, found.checked, found.skipped, first.examination.seconds + found.seconds
    )
    return Report(examination, second.stages, second.is_guessed, second.num_keys, second.target, second.config)


def _seen_before(finding: Finding, earlier: Collection[Finding]) -> Finding | None:
    """The finding if an earlier look has one of its kind about one of its keys."""
    alike = [one for one in earlier if (one.kind, one.partition) == (finding.kind, finding.partition)]
    keys = {key for one in alike for key in one.keys}
    return finding if alike and (not finding.keys or keys & set(finding.keys)) else None
