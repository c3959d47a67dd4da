"""Evidence: who wrote the offending keys last, and when, as far as a snapshot or an event log knows.

verl 0.9.1 keeps no such record. A snapshot of the in-process queue carries the last write of every key; a watched
queue, a recording and a list of events do so too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kitlib.inspector.doctor.finding import Finding
from kitlib.inspector.history import NoEventsError, events_of, seconds_text, signature
from kitlib.transfer_queue import QueueSnapshot

NUM_SHOWN = 3


def with_evidence(finding: Finding, snapshot: QueueSnapshot, source: Any = None) -> Finding:
    """The finding with one line for each of its first keys that somebody is known to have written."""
    if not finding.keys or finding.partition not in snapshot.partitions:
        return finding
    lines = _from_snapshot(finding, snapshot) or _from_events(finding, source)
    return replace(finding, evidence=(*finding.evidence, *lines)) if lines else finding


def _from_snapshot(finding: Finding, snapshot: QueueSnapshot) -> list[str]:
    partition = snapshot.partitions[str(finding.partition)]
    lines = []
    for key in finding.keys[:NUM_SHOWN]:
        write = partition.last_writes[partition.row_of[key]] if key in partition and partition.last_writes else None
        if write is not None:
            who = " ".join(write.who.values()) or write.thread
            lines.append(f"{key}: last write {seconds_text(max(0.0, snapshot.taken_at - write.at))} ago by {who}")
    return lines


def _from_events(finding: Finding, source: Any) -> list[str]:
    try:
        events = events_of(source) if source is not None else []
    except NoEventsError:
        return []
    last = dict.fromkeys(finding.keys[:NUM_SHOWN]) | {
        key: event
        for event in events
        if (event.is_put or event.verb == "kv_clear") and event.error is None
        if event.partition_id == finding.partition
        for key in event.keys
        if key in finding.keys[:NUM_SHOWN]
    }
    end = events[-1].started_at if events else 0.0
    return [
        f"{key}: {'last write' if event.is_put else 'cleared'} {seconds_text(end - event.started_at)} before the end "
        f"of the log by {signature(event)}"
        for key, event in last.items()
        if event is not None
    ]
