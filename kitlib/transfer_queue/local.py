"""TransferQueue: the store in this process, with the verbs of the package and their surprises.

TransferQueue 0.1.11: interface.py (verbs), client.py (checks). Left out: processes, sockets, other backends.

The life of one key:

    kv_batch_put(["u1_0_0"], ...)                                                kv_clear(["u1_0_0"], ...)
       |  register: index, empty tag        (listed, "not ready")                   |  status, tag, values and index
       |  copy the columns, outside the lock                                        |  go in one step
       v  publish: values placed, fields marked, tags merged, in one step           v
    ---+=====================  kv_batch_get delivers, kv_list lists  ===============+--- the index serves another key

A put that fails between the first and the last step leaves a key with an empty tag and no field, as the package does.

One lock guards controller and storage. It is held for dictionary work only, never while a tensor is copied: a put
copies before it takes the lock to publish, a get takes references under the lock and copies after.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensordict import TensorDict, TensorDictBase

from kitlib.transfer_queue.actors import LastWrite
from kitlib.transfer_queue.arguments import (
    check_batch_size,
    check_partition,
    checked_keys,
    few,
    single_row,
    stored_tags,
)
from kitlib.transfer_queue.blocks import Block, join_rows
from kitlib.transfer_queue.checkpoint import pack, read_checkpoint, references, restore, write_checkpoint
from kitlib.transfer_queue.columns import split_fields
from kitlib.transfer_queue.controller import Controller
from kitlib.transfer_queue.errors import QueueRuntimeError, QueueValueError
from kitlib.transfer_queue.journal import Changes, Journal, all_of
from kitlib.transfer_queue.metadata import KVBatchMeta
from kitlib.transfer_queue.parsing import parse_fields
from kitlib.transfer_queue.protocol import DataParser, Listing
from kitlib.transfer_queue.snapshot import QueueSnapshot, picture
from kitlib.transfer_queue.storage import StorageUnits
from kitlib.transfer_queue.twins import AsyncTwins


class TransferQueue(AsyncTwins):
    """An in-process queue; thread-safe, and usable from several event loops at once.

    num_storage_units: over how many units the rows are spread. total_storage_size: how many rows may hold fields at a
    time (keys with tags only are free), None for no limit. max_bytes: the same in bytes of values.
    """

    def __init__(
        self, num_storage_units: int = 2, total_storage_size: int | None = 100_000, max_bytes: int | None = None
    ) -> None:
        if num_storage_units < 1:
            raise QueueValueError(f"num_storage_units must be at least 1, not {num_storage_units}")
        self.total_storage_size = total_storage_size
        self.max_bytes = max_bytes
        self._controller = Controller()
        self._storage = StorageUnits(num_storage_units)
        self._changed = threading.Condition()  # the one lock, and the bell that rings at every change
        self._version = 0
        self._journal = Journal()
        self._closed = False

    # -- writing ------------------------------------------------------------------------------------------------------

    def kv_put(
        self,
        key: str,
        partition_id: str,
        fields: TensorDict | dict[str, Any] | None = None,
        tag: dict[str, Any] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """Store fields and/or a tag for one key.

        fields: {field: row value} without a batch dimension, or a TensorDict of batch size [1]. The tag is merged
        into the stored one. Returns the handle of the key with the merged tag and all fields it now has. Raises
        QueueValueError without fields and tag, or for a nested tensor; the key is registered by then in the latter
        case.
        """
        if fields is None and tag is None:
            raise QueueValueError("kv_put needs at least one of fields and tag")
        keys = checked_keys([key])
        self._register(keys, partition_id)
        tags = None if tag is None else stored_tags([tag], keys)
        blocks: dict[str, Block] = {}
        if isinstance(fields, TensorDictBase):
            check_batch_size(fields, keys)
            blocks = split_fields(fields)
        elif isinstance(fields, dict):
            blocks = {name: single_row(name, value) for name, value in fields.items()}
        elif fields is not None:
            raise QueueValueError(f"`fields` can only be dict or TensorDict, not {type(fields).__name__}")
        return self._publish(keys, partition_id, parse_fields(blocks, data_parser), tags)

    def kv_batch_put(
        self,
        keys: list[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: list[dict[str, Any]] | None = None,
        data_parser: DataParser | None = None,
    ) -> KVBatchMeta:
        """Store fields and/or tags for several keys at once. fields: batch size [len(keys)]; tags: one a key.

        Tags are merged, fields overwritten; fields that are not named stay. Returns the handle of the keys with merged
        tags and the fields that all of them now have. Raises QueueValueError if lengths do not match or a key appears
        twice; in the latter case everything is stored by then, of a key given twice the last row and tag.
        """
        if fields is None and tags is None:
            raise QueueValueError("kv_batch_put needs at least one of `fields` and `tags`")
        key_list = checked_keys(keys)
        if fields is not None:
            check_batch_size(fields, keys)
        self._register(key_list, partition_id)
        if len(key_list) != len(keys):
            raise QueueRuntimeError(f"`keys` is the string {keys!r}: pass a list of keys")
        stored = None if tags is None else stored_tags(tags, key_list)
        blocks = {} if fields is None else split_fields(fields)
        return self._publish(key_list, partition_id, parse_fields(blocks, data_parser), stored)

    def kv_clear(self, keys: list[str] | str, partition_id: str) -> None:
        """Remove keys with their tags and fields; unknown ones are no error, an empty list is a QueueValueError."""
        key_list = checked_keys(keys)
        check_partition(partition_id)
        with self._changed:
            self._check_open()
            indexes = self._controller.forget(partition_id, key_list)
            self._storage.clear(indexes)
            if indexes:
                self._ring()
                self._journal.note(self._version, partition_id, key_list, cleared=True)

    def _register(self, keys: Sequence[str], partition_id: str) -> None:
        check_partition(partition_id)
        with self._changed:
            self._check_open()
            _, is_new = self._controller.register(partition_id, keys)
            if is_new:
                self._note_put(partition_id, keys)

    def _publish(
        self, keys: list[str], partition_id: str, blocks: Mapping[str, Block], tags: list[dict[str, Any]] | None
    ) -> KVBatchMeta:
        controller = self._controller
        with self._changed:
            self._check_open()
            indexes, _ = controller.register(partition_id, keys)  # again: somebody may have cleared a key meanwhile
            if blocks:
                controller.publish(indexes, blocks, self.total_storage_size, self.max_bytes)
                self._storage.put(indexes, blocks)
            if tags is not None:
                controller.merge_tags(partition_id, keys, tags)
            tags_of = controller.partitions[partition_id].tags
            merged = [tags_of[key] for key in keys]  # never changed in place; the handle copies them
            fields = controller.ready_fields(indexes)
            self._note_put(partition_id, keys)
        return KVBatchMeta(keys=keys, tags=merged, partition_id=partition_id, fields=fields)

    # -- reading ------------------------------------------------------------------------------------------------------

    def kv_batch_get(
        self, keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None
    ) -> TensorDict:
        """Fetch rows in the order of `keys` as a TensorDict of batch size [num_rows found].

        Narrows without an error, as the package does: a key that does not exist is left out, a field that one of the
        rows lacks is left out for all of them, a name in `select_fields` that no row has is left out. `strict_get`
        raises instead and `explain_get` says what would be dropped. Raises QueueValueError if no key exists, or if
        there is no field that all rows have (one key with tags only is enough).
        """
        key_list = checked_keys(keys)
        check_partition(partition_id)
        with self._changed:
            self._check_open()
            found = self._controller.lookup(partition_id, key_list)
            if not found:
                raise QueueValueError(
                    f"keys or partition were not found! partition {partition_id!r}, keys {few(key_list)}"
                )
            indexes = [found[key] for key in key_list if key in found]
            ready = self._controller.ready_fields(indexes)
            if not ready:
                raise QueueValueError(
                    "Some fields are not ready in all the requested keys! No field is there for every one of the "
                    f"{len(indexes)} rows in partition {partition_id!r}; "
                    "explain_get(tq, keys, partition_id=...) lists them"
                )
            wanted = [select_fields] if isinstance(select_fields, str) else select_fields
            fields = ready if wanted is None else [name for name in ready if name in wanted]
            columns = self._storage.get(indexes, fields)
        if not columns:
            return TensorDict({}, batch_size=0)
        return TensorDict({name: join_rows(*rows) for name, rows in columns.items()}, batch_size=len(indexes))

    def kv_batch_get_by_meta(self, meta: KVBatchMeta, select_fields: list[str] | str | None = None) -> TensorDict:
        """Fetch the rows of a handle: `select_fields` if given, else `meta.fields`, else whatever all rows have.

        Raises QueueValueError if the handle has no partition, or for a name in `select_fields` that is not in
        `meta.fields` (also if those are None); otherwise as kv_batch_get.
        """
        if meta.partition_id is None:
            raise QueueValueError("Must provide partition_id in the input KVBatchMeta")
        if select_fields is None:
            return self.kv_batch_get(meta.keys, meta.partition_id, meta.fields)
        wanted = [select_fields] if isinstance(select_fields, str) else list(select_fields)
        unknown = [name for name in wanted if name not in (meta.fields or [])]
        if unknown:
            raise QueueValueError(f"select_fields {unknown} not found in the fields of the KVBatchMeta: {meta.fields}")
        return self.kv_batch_get(meta.keys, meta.partition_id, wanted)

    def kv_list(self, partition_id: str | None = None) -> Listing:
        """{partition_id: {key: tag}} of all partitions or of one, keys in the order of their first put; never fields.

        A partition whose keys were all cleared stays listed; an unknown one gives {}.
        """
        if partition_id is not None:
            check_partition(partition_id)
        with self._changed:
            self._check_open()
            partitions = self._controller.partitions
            wanted = partitions if partition_id is None else {partition_id} & partitions.keys()
            return {name: partitions[name].copy_tags() for name in wanted}

    # -- consumption: which rows a task has been handed (client.py) ----------------------------------------------------

    def mark_consumed(self, partition_id: str, task_name: str, keys: Sequence[str]) -> None:
        """Remember that the task was handed these keys; unknown ones are skipped."""
        with self._changed:
            self._check_open()
            found = self._controller.lookup(partition_id, keys)
            if found:
                self._controller.partitions[partition_id].consumed.setdefault(task_name, set()).update(found)
                self._ring()

    def reset_consumption(self, partition_id: str, task_name: str | None = None) -> None:
        """Forget what a task, or every task, was handed of the partition."""
        with self._changed:
            self._check_open()
            if partition_id in self._controller.partitions:
                consumed = self._controller.partitions[partition_id].consumed
                for name in [task_name] if task_name is not None else list(consumed):
                    consumed.pop(name, None)
                self._ring()

    # -- watching -----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Grows with every change of keys, tags or fields."""
        return self._version

    def wait_for_change(self, since: int, timeout: float | None = None) -> int:
        """Sleep until `version` exceeds `since`, for at most `timeout` seconds; returns the version. A close ends the
        wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version > since or self._closed, timeout)
            return self._version

    def changes(self, since: int, partition_id: str | None = None) -> Changes:
        """What changed after version `since`, in all partitions or in one; see Changes.

        Everything, with `is_complete`, if the journal does not reach back so far or `since` is no version of this
        queue.
        """
        with self._changed:
            self._check_open()
            found = self._journal.read(since, partition_id) if since <= self._version else None
            partitions = self._controller.partitions
            if found is None:
                names = partitions if partition_id is None else {partition_id} & partitions.keys()
                return all_of({name: partitions[name].copy_tags() for name in names}, self._version)
            written, cleared = found
            tags = {name: partitions[name].copy_tags(keys) for name, keys in written.items() if keys}
            return Changes(self._version, False, tags, cleared)

    def snapshot(self, partition_id: str | None = None, keys: Sequence[str] | None = None) -> QueueSnapshot:
        """A frozen picture of all partitions or of one, of all keys or of these; see take_snapshot.

        Unknown keys are left out. A picture of a few keys costs what they cost: with `changes`, a reader keeps up
        with a large queue.
        """
        with self._changed:
            return picture(self._controller, partition_id, keys)

    # -- saving and closing -------------------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint_dir: str | Path, *, metadata: dict[str, Any] | None = None) -> None:
        """Save keys, tags and fields to a folder; see checkpoint.py. The queue stays usable meanwhile.

        Raises QueueTypeError for a value that a file without code cannot hold, naming the field.
        """
        with self._changed:
            self._check_open()
            state = references(self._controller, self._storage)
        write_checkpoint(checkpoint_dir, pack(state), metadata)

    def load_checkpoint(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        """Replace everything in the queue by a checkpoint and return the metadata that was saved with it.

        Raises FileNotFoundError if there is none, QueueFileError if it is truncated or foreign; the queue is
        unchanged then.
        """
        state, metadata = read_checkpoint(checkpoint_dir)
        controller, storage = Controller(), StorageUnits(len(self._storage.units))
        restore(state, controller, storage)
        with self._changed:
            self._check_open()
            self._controller, self._storage = controller, storage
            self._ring()
            self._journal.restart(self._version)
        return metadata

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def close(self) -> None:
        """Drop everything and end all waits; every later call raises QueueRuntimeError. Closing twice is no error."""
        with self._changed:
            self._closed = True
            self._controller = Controller()
            self._storage = StorageUnits(len(self._storage.units))
            self._ring()
            self._journal.restart(self._version)

    def _note_put(self, partition_id: str, keys: Sequence[str]) -> None:
        self._controller.sign(partition_id, keys, LastWrite.now())
        self._ring()
        self._journal.note(self._version, partition_id, keys)

    def _ring(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise QueueRuntimeError("the queue is closed")
