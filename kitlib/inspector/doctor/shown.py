"""Which view shows a finding: the call to make, and the view itself, from the target that the doctor looked at.

A finding names its view; here the name becomes a call with the partition, the stage or the key filled in. A page holds
the views below the findings, and each finding leads to its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any
from zlib import crc32

from kitlib.errors import KitError
from kitlib.inspector.batch_handle_view import batch_handle
from kitlib.inspector.diff_view import diff
from kitlib.inspector.doctor.finding import Finding
from kitlib.inspector.doctor.way_on import WayOn
from kitlib.inspector.group_board_view import group_board
from kitlib.inspector.partitions_view import partitions
from kitlib.inspector.presence_view import presence
from kitlib.inspector.recording import Moment
from kitlib.inspector.source import snapshot_of
from kitlib.inspector.staleness_view import staleness
from kitlib.inspector.tokens_view import tokens
from kitlib.inspector.view import View
from kitlib.transfer_queue import KVBatchMeta, QueueSnapshot

if TYPE_CHECKING:
    from kitlib.inspector.doctor.report import Report

NUM_PANELS, PANEL_BUDGET = 4, 25_000  # bytes of a view below the findings; presence takes 13,000 without a line
_PANEL = "margin:4px 0;overflow-x:auto;font:12px/1.5 ui-monospace,Menlo,Consolas,monospace"


def call_of(report: Report, finding: Finding) -> str:
    """The call that shows a finding, such as `tokens(tq, "u1_0_0", partition_id="train")`, or the command."""
    if report.shell is not None:
        return WayOn(report.shell).look(finding, _stage_of(report))
    where = f'partition_id="{_partition_of(finding)}"'
    target = _word(report.target)
    if finding.view == "tokens":
        return f'tokens({target}, "{finding.keys[0]}", {where})'
    if finding.view == "partitions":
        return f"partitions({target})"
    if finding.view == "batch_handle":
        return f"batch_handle({target}, batch)"
    if finding.view == "diff" and report.before is not None:
        return "diff(before, after)"
    if finding.view in ("group_board", "staleness"):
        config = "config=config, " if report.config is not None else ""
        return f"{finding.view}({target}, {config}{where})"
    stage = _stage_of(report)
    told = "".join([f', "{stage}"' if stage else "", ", config" if stage and report.config is not None else ""])
    return f"presence({target}{told}, {where})"


def view_of(report: Report, finding: Finding) -> View:
    """Raises what the view raises, for example NoTokensError for a target without values."""
    target, partition_id = report.target, _partition_of(finding)
    if finding.view == "group_board":
        return group_board(target, partition_id=partition_id, config=report.config)
    if finding.view == "staleness":
        return staleness(target, report.global_steps, report.config, partition_id)
    if finding.view == "tokens":
        return tokens(target, finding.keys[0], partition_id=partition_id, config=report.config)
    if finding.view == "partitions":
        return partitions(target)
    if finding.view == "diff" and report.before is not None:
        return diff(report.before, snapshot_of(target), partition_id=partition_id)
    if finding.view == "batch_handle":
        keys = list(dict.fromkeys(finding.keys))
        return batch_handle(target, KVBatchMeta(keys, _tags(target, partition_id, keys), partition_id))
    return presence(target, _stage_of(report), report.config, partition_id)


def panels(report: Report) -> dict[str, View]:
    """{call: view} of the first views that the findings lead to; a view that cannot be made is left out."""
    made: dict[str, View] = {}
    for finding in report.findings:
        call = call_of(report, finding)
        if call in made or len(made) == NUM_PANELS or report.target is None:
            continue
        try:
            made[call] = View(view_of(report, finding).model, PANEL_BUDGET)
        except KitError:  # such as NoTokensError: a snapshot holds no values
            continue
    return made


def anchor_of(call: str, report: Report) -> str:
    """Name of the place of a view on the page: another one for another report in the same notebook."""
    keys = "".join(key for finding in report.findings for key in finding.keys)
    return f"doctor-{crc32((call + keys).encode()):08x}"


def write_panels(views: Mapping[str, View], anchors: Mapping[str, str]) -> str:
    """The views as HTML, folded; a link into one opens it."""
    return "".join(
        f'<details style="{_PANEL}"><summary>{escape(call)}</summary><div id="{anchors[call]}">{view.html()}</div>'
        "</details>"
        for call, view in views.items()
    )


def _word(target: Any) -> str:
    if isinstance(target, Moment):
        return "recording"
    return "snapshot" if isinstance(target, QueueSnapshot) else "tq"


def _partition_of(finding: Finding) -> str:
    return finding.partition or "train"


def _stage_of(report: Report) -> str | None:
    return next((name for name in report.stages if name != "resume"), None)


def _tags(target: Any, partition_id: str, keys: list[str]) -> list[dict[str, Any]]:
    """The tags as the queue has them; the handle that the finding was about is not kept."""
    partition = snapshot_of(target).partitions.get(partition_id)
    return [partition.tag_of(key) if partition is not None and key in partition else {} for key in keys]
