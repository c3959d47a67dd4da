"""The store in one sitting. Read the files in this order:

    protocol.py    the verbs
    metadata.py    KVBatchMeta: what moves between stages
    local.py       TransferQueue: the verbs in this process, the life of a key, the one lock
    twins.py       the same verbs for coroutines
    controller.py  the control plane: keys, indexes, what has been produced, tags
    storage.py     the data plane: rows x columns in several units
    columns.py     how a put takes columns in, and what comes back as what
    blocks.py      a column of one put as the store keeps it, and how rows are joined again
    cells.py       how the controller describes a value without holding it
    values.py      what happens to Python objects on the way in and out
    arguments.py, parsing.py    checks of arguments, the data_parser of a put
    journal.py     the change feed: what happened since a reader looked last
    checkpoint.py  save and load
    layout.py      jagged, padded, lengths, list_of_dict_to_tensordict
    snapshot.py    QueueSnapshot: a frozen picture of a queue
    explain.py     explain_get and strict_get: no silent narrowing
    client.py      the metadata level: ask for rows that are ready, remember what a task was handed
    samplers.py    which of the ready rows are handed out
    streaming.py   a torch DataLoader over a partition that is being filled
    strict.py      StrictQueue: no silent overwriting either
    diff.py        what changed between two snapshots
    snapshot_file.py     a snapshot as a file
    actors.py      who is calling
    events.py      the event log: who wrote what, when, over what
    watched.py     watch(): the verbs of any queue, recorded
    drop_in.py     init(), close() and the verbs as functions, for code written for the package
    package.py, package_snapshot.py    the same verbs on Ray: the TransferQueue package
    errors.py      the errors

A queue has no global instance here: whoever makes one (`TransferQueue()`, `package.connect(config)`) hands it on as an
argument named `tq` and closes it (`tq.close()`). The module drop_in is the one exception.
"""

from __future__ import annotations

from kitlib.transfer_queue.actors import LastWrite, acting_as
from kitlib.transfer_queue.cells import Cell
from kitlib.transfer_queue.client import TransferQueueClient
from kitlib.transfer_queue.diff import PartitionDiff, SnapshotDiff, diff
from kitlib.transfer_queue.errors import (
    MissingFieldsError,
    NoQueueError,
    QueueError,
    QueueFileError,
    QueueFullError,
    QueueRuntimeError,
    QueueTimeoutError,
    QueueTypeError,
    QueueValueError,
    StrictWriteError,
)
from kitlib.transfer_queue.events import Event, EventLog, read_events
from kitlib.transfer_queue.explain import GetReport, explain_get, strict_get
from kitlib.transfer_queue.journal import Changes
from kitlib.transfer_queue.layout import jagged, lengths, list_of_dict_to_tensordict, padded
from kitlib.transfer_queue.local import TransferQueue
from kitlib.transfer_queue.metadata import KVBatchMeta
from kitlib.transfer_queue.protocol import QueueProtocol
from kitlib.transfer_queue.samplers import (
    GRPOGroupNSampler,
    RankAwareSampler,
    Sampler,
    SeqlenBalancedSampler,
    SequentialSampler,
)
from kitlib.transfer_queue.snapshot import PartitionSnapshot, QueueSnapshot, take_snapshot
from kitlib.transfer_queue.snapshot_file import load_snapshot, save_snapshot
from kitlib.transfer_queue.strict import StrictQueue, check_put
from kitlib.transfer_queue.watched import watch

__all__ = [
    "Cell",
    "Changes",
    "Event",
    "EventLog",
    "GRPOGroupNSampler",
    "GetReport",
    "KVBatchMeta",
    "LastWrite",
    "MissingFieldsError",
    "NoQueueError",
    "PartitionDiff",
    "PartitionSnapshot",
    "QueueError",
    "QueueFileError",
    "QueueFullError",
    "QueueProtocol",
    "QueueRuntimeError",
    "QueueSnapshot",
    "QueueTimeoutError",
    "QueueTypeError",
    "QueueValueError",
    "RankAwareSampler",
    "Sampler",
    "SeqlenBalancedSampler",
    "SequentialSampler",
    "SnapshotDiff",
    "StrictQueue",
    "StrictWriteError",
    "TransferQueue",
    "TransferQueueClient",
    "acting_as",
    "check_put",
    "diff",
    "explain_get",
    "jagged",
    "lengths",
    "load_snapshot",
    "list_of_dict_to_tensordict",
    "padded",
    "read_events",
    "save_snapshot",
    "strict_get",
    "take_snapshot",
    "watch",
]
