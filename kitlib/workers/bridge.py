"""Between the queue and a worker: metadata in, tensors past the controller, metadata out.

verl 0.9.1: utils/transferqueue_utils.py, tqbridge, with utils/transferqueue_utils.py's KVBatchMeta handling.

    trainer                    bridge                                 worker                    queue
    KVBatchMeta ------------>  fields the method declares  <------------------------------------  columns
    (keys, extra_info)         + extra_info as settings    -------->  method(TensorDict)
                               tensor outputs   ---------------------------------------------->   columns
    KVBatchMeta <------------  other outputs as extra_info <--------  TensorDict or dict
    or metrics

A worker method says what it reads with `@fetches(...)`. verl fetches every field that all rows have (or that
`meta.fields` names); here only the declared ones travel, and a declared field that a row lacks is an error that names
key and field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tensordict import TensorDict
from torch import Tensor

from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, acting_as, strict_get
from kitlib.workers.errors import WorkerError

Method = TypeVar("Method", bound=Callable[..., Any])
_REQUIRED = object()


def fetches(*fields: str, optional: tuple[str, ...] = ()) -> Callable[[Method], Method]:
    """Declare the fields that a worker method reads: `fields` on every row, `optional` ones if every row has them."""

    def declare(method: Method) -> Method:
        method.fields, method.optional_fields = fields, optional  # type: ignore[attr-defined]
        return method

    return declare


def setting(data: TensorDict, name: str, default: Any = _REQUIRED) -> Any:
    """One value of `extra_info`, which came along as a non-tensor of the batch; WorkerError if absent without a
    default."""
    if name in data.keys():
        return data.get_non_tensor(name)
    if default is _REQUIRED:
        raise WorkerError(f"the worker needs the setting {name!r}: put it into batch.extra_info before the call")
    return default


def call_by_meta(
    tq: QueueProtocol, method: Callable[[TensorDict], Any], batch: KVBatchMeta
) -> KVBatchMeta | dict[str, Any]:
    """Run a declared worker method on the rows of `batch`.

    A TensorDict result goes back to the queue (tensor columns) and into `extra_info` (the rest) of the returned
    KVBatchMeta; a dict result is returned as it is. Calls to the queue are signed with the worker's name. Raises
    MissingFieldsError if a row lacks a declared field.
    """
    with acting_as(worker=_worker_of(method)):
        return _call_by_meta(tq, method, batch)


def _call_by_meta(
    tq: QueueProtocol, method: Callable[[TensorDict], Any], batch: KVBatchMeta
) -> KVBatchMeta | dict[str, Any]:
    data = fetch(tq, method, batch)
    for name, value in (batch.extra_info or {}).items():
        data.set_non_tensor(name, value)
    output = method(data)
    if not isinstance(output, TensorDict):
        return output
    columns = {str(name): value for name, value in output.items() if isinstance(value, Tensor)}
    others = {str(name): output.get_non_tensor(name) for name in output.keys() if name not in columns}
    fields = TensorDict(columns, batch_size=[len(batch)])
    meta = tq.kv_batch_put(keys=batch.keys, partition_id=partition_of(batch), fields=fields)
    meta.extra_info = {**(batch.extra_info or {}), **others}
    return meta


def _worker_of(method: Callable[..., Any]) -> str:
    """The name with which the worker signs its calls: verl's class name, such as ActorRolloutRefWorker."""
    owner = getattr(method, "__self__", None)
    return str(method.__name__) if owner is None else type(owner).__name__


def fetch(tq: QueueProtocol, method: Callable[..., Any], batch: KVBatchMeta) -> TensorDict:
    """The declared columns of `method` for the rows of `batch`, in the order of its keys."""
    wanted = [*method.fields, *method.optional_fields]  # type: ignore[attr-defined]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=partition_of(batch), select_fields=wanted)
    complete = len(data) == len(batch) and all(name in data.keys() for name in method.fields)  # type: ignore[attr-defined]
    # The store drops a column that one row lacks, and a row that does not exist, without a word: ask again, strictly.
    return data if complete else strict_get(tq, batch, list(method.fields))  # type: ignore[attr-defined]


def partition_of(batch: KVBatchMeta) -> str:
    """The partition of a handle; WorkerError for a handle that names none."""
    if batch.partition_id is None:
        raise WorkerError(f"the batch of {len(batch)} keys names no partition: set KVBatchMeta.partition_id")
    return batch.partition_id
