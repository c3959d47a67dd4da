"""Joins the rows of sessions that end in the same turn of the event loop into one put.

verl 0.9.1 puts each session by itself (trainer/ppo/v1/agent_loop_tq.py, _agent_loop_postprocess). A server answers
many requests of one decode step at once, so many sessions end together; one put of 128 rows costs a tenth of 128 puts
of one. A reader cannot tell the difference: the rows of a session still appear all at once, and before its prompt is
`finished`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from kitlib.transfer_queue import QueueProtocol, list_of_dict_to_tensordict


@dataclass
class _Rows:
    """Rows of one session, and the future that its task waits for."""

    keys: list[str]
    fields: list[dict[str, Any]]
    tags: list[dict[str, Any]]
    stored: asyncio.Future[None]


class RowBatcher:
    """Belongs to one event loop; rows with other fields or for another partition go into a put of their own."""

    def __init__(self, tq: QueueProtocol) -> None:
        self.tq = tq
        self._waiting: dict[tuple[str, frozenset[str]], list[_Rows]] = {}
        self._flushes: set[asyncio.Task[None]] = set()

    async def put(
        self, keys: list[str], fields: list[dict[str, Any]], tags: list[dict[str, Any]], partition_id: str
    ) -> None:
        """Store the rows; returns when they are in the queue, and raises what the put raised."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._start_flush)  # behind every session that is ready to run now
        rows = _Rows(keys, fields, tags, loop.create_future())
        self._waiting.setdefault((partition_id, frozenset(fields[0])), []).append(rows)
        await rows.stored

    def _start_flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (partition_id, _), group in waiting.items():
            task = asyncio.get_running_loop().create_task(self._store(partition_id, group))
            self._flushes.add(task)
            task.add_done_callback(self._flushes.discard)

    async def _store(self, partition_id: str, group: list[_Rows]) -> None:
        error: BaseException | None = None
        try:
            await self.tq.async_kv_batch_put(
                keys=[key for rows in group for key in rows.keys],
                partition_id=partition_id,
                fields=list_of_dict_to_tensordict([row for rows in group for row in rows.fields]),
                tags=[tag for rows in group for tag in rows.tags],
            )
        except Exception as raised:  # noqa: BLE001  it belongs to the sessions that wait
            error = raised
        for rows in group:
            if rows.stored.done():  # its session was cancelled meanwhile
                continue
            if error is None:
                rows.stored.set_result(None)
            else:
                rows.stored.set_exception(error)
