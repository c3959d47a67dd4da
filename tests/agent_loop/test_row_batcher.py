"""Rows of sessions that end together share a put; a failed put fails exactly the sessions in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from kitlib.agent_loop.row_batcher import RowBatcher
from kitlib.transfer_queue import TransferQueue


class Counting(TransferQueue):
    """Remembers the keys of each put; refuses a put that holds a bad key."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[list[str]] = []

    async def async_kv_batch_put(self, keys: list[str], *args: Any, **kwargs: Any) -> Any:
        self.puts.append(keys)
        if "bad_0_0" in keys:
            raise RuntimeError("refused")
        return await super().async_kv_batch_put(keys, *args, **kwargs)


async def put(batcher: RowBatcher, key: str, partition_id: str = "train", **more: Any) -> None:
    await batcher.put([key], [{"responses": torch.arange(3), **more}], [{"status": "success"}], partition_id)


def test_sessions_that_end_together_share_a_put_and_later_ones_get_their_own() -> None:
    tq = Counting()

    async def main() -> None:
        batcher = RowBatcher(tq)
        await asyncio.gather(*(put(batcher, f"u_{i}_0") for i in range(8)))
        assert len(tq.kv_list("train")["train"]) == 8  # stored when the call returns
        await put(batcher, "v_0_0")

    asyncio.run(main())
    assert tq.puts == [[f"u_{i}_0" for i in range(8)], ["v_0_0"]]
    tq.close()


def test_rows_with_other_fields_or_another_partition_do_not_share() -> None:
    tq = Counting()

    async def main() -> None:
        batcher = RowBatcher(tq)
        await asyncio.gather(put(batcher, "a_0_0"), put(batcher, "b_0_0", note="x"), put(batcher, "c_0_0", "val"))

    asyncio.run(main())
    assert sorted(tq.puts) == [["a_0_0"], ["b_0_0"], ["c_0_0"]]
    assert set(tq.kv_list("val")["val"]) == {"c_0_0"}
    tq.close()


def test_a_failed_put_raises_in_its_sessions_and_a_cancelled_session_does_no_harm() -> None:
    tq = Counting()

    async def main() -> None:
        batcher = RowBatcher(tq)
        bad = [asyncio.create_task(put(batcher, key)) for key in ("a_0_0", "bad_0_0")]
        good = asyncio.create_task(put(batcher, "b_0_0", note="x"))
        gone = asyncio.create_task(put(batcher, "c_0_0", note="x"))
        await asyncio.sleep(0)
        gone.cancel()
        for task in bad:
            with pytest.raises(RuntimeError, match="refused"):
                await task
        await good

    asyncio.run(main())
    assert {"b_0_0", "c_0_0"} <= set(tq.kv_list("train")["train"])
    tq.close()
