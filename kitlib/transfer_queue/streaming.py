"""A torch DataLoader over a partition that is still being filled: every batch is handed out as soon as its rows are
ready.

TransferQueue 0.1.11: dataloader/streaming_dataset.py and streaming_dataloader.py. Left out: worker processes (an
in-process queue cannot be read from another process; the wait for rows needs no second process anyway).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tensordict import TensorDict
from torch.utils.data import DataLoader, IterableDataset

from kitlib.transfer_queue.client import TransferQueueClient
from kitlib.transfer_queue.errors import QueueTimeoutError, QueueValueError
from kitlib.transfer_queue.metadata import KVBatchMeta


class StreamingDataset(IterableDataset):
    """Micro-batches (data, handle) of one partition for one task and one rank.

    Each step asks for batch_size rows and yields them in parts of micro_batch_size. Batches that were fetched are
    kept: after `reset()` they come again, from memory. stops True: ends once every row that is there has been
    consumed and no batch is due; False: goes on for ever and raises QueueTimeoutError if no rows come in time.
    """

    def __init__(
        self,
        client: TransferQueueClient,
        batch_size: int,
        micro_batch_size: int,
        data_fields: Sequence[str],
        partition_id: str,
        task_name: str,
        dp_rank: int = 0,
        stops: bool = True,
    ) -> None:
        if not 1 <= micro_batch_size <= batch_size:
            raise QueueValueError(f"micro_batch_size {micro_batch_size} must lie between 1 and batch_size {batch_size}")
        if not data_fields:
            raise QueueValueError("data_fields must name at least one field")
        self._client = client
        self._batch_size, self._micro_batch_size = batch_size, micro_batch_size
        self._data_fields, self._task_name, self._dp_rank = list(data_fields), task_name, dp_rank
        self._stops = stops
        self.partition_id = partition_id
        self.buffer: list[KVBatchMeta] = []
        self._next = 0

    def __iter__(self) -> Iterator[tuple[TensorDict, KVBatchMeta]]:
        while True:
            if self._next == len(self.buffer):
                try:
                    self.buffer.append(self._fetch())
                except QueueTimeoutError:
                    if self._stops and self._client.is_consumed(self._task_name, self.partition_id):
                        return
                    raise
            meta = self.buffer[self._next]
            self._next += 1
            for part in meta.chunk(-(-meta.size // self._micro_batch_size)):
                yield self._client.get_data(part), part

    def reset(self) -> None:
        """Start over with the batches that were fetched."""
        self._next = 0

    def step(self, partition_id: str) -> None:
        """Go on with another partition."""
        self.partition_id, self.buffer, self._next = partition_id, [], 0

    def _fetch(self) -> KVBatchMeta:
        config = {"dp_rank": self._dp_rank, "batch_index": len(self.buffer)}
        return self._client.get_meta(
            self._data_fields, self._batch_size, self.partition_id, task_name=self._task_name, sampling_config=config
        )


class StreamingDataLoader(DataLoader):
    """A DataLoader of a StreamingDataset; yields (TensorDict, KVBatchMeta)."""

    def __init__(self, dataset: StreamingDataset) -> None:
        super().__init__(dataset, batch_size=None, num_workers=0, collate_fn=_as_it_is)
        self._stream = dataset

    def reset(self) -> None:
        """Start over with the batches that were fetched."""
        self._stream.reset()

    def step(self, partition_id: str) -> None:
        """Go on with another partition."""
        self._stream.step(partition_id)


def _as_it_is(batch: Any) -> Any:
    return batch
