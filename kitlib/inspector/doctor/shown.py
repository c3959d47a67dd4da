"""Which view shows a finding, made from the target that the doctor looked at.

A finding names its view; here the name becomes the view: presence with the offending keys, the group board of the
partition, the tokens of the first key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kitlib.inspector.batch_handle_view import batch_handle
from kitlib.inspector.doctor.finding import Finding
from kitlib.inspector.group_board_view import group_board
from kitlib.inspector.partitions_view import partitions
from kitlib.inspector.presence_view import presence
from kitlib.inspector.source import Source, snapshot_of
from kitlib.inspector.tokens_view import tokens
from kitlib.inspector.view import View
from kitlib.transfer_queue import KVBatchMeta

if TYPE_CHECKING:
    from kitlib.inspector.doctor.report import Report


def _tags(target: Source, partition_id: str, keys: list[str]) -> list[dict[str, Any]]:
    """The tags as the queue has them; the handle that the finding was about is not kept."""
    partition = snapshot_of(target).partitions.get(partition_id)
    return [partition.tag_of(key) if partition is not None and key in partition else {} for key in keys]


def view_of(report: Report, finding: Finding) -> View:
    """Raises what the view raises, for example NoTokensError for a target without values."""
    target, partition_id = report.target, finding.partition or "train"
    if finding.view == "group_board":
        return group_board(target, partition_id=partition_id, config=report.config)
    if finding.view == "tokens":
        return tokens(target, finding.keys[0], partition_id=partition_id)
    if finding.view == "partitions":
        return partitions(target)
    if finding.view == "batch_handle":
        keys = list(dict.fromkeys(finding.keys))
        return batch_handle(target, KVBatchMeta(keys, _tags(target, partition_id, keys), partition_id))
    stage = next((name for name in report.stages if name != "resume"), None)
    return presence(target, stage, report.config, partition_id)
