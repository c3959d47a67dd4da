"""The data plane by itself: rows in several units, freed when they are cleared or overwritten; one copy a put."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kitlib.transfer_queue import QueueValueError, TransferQueue, jagged
from kitlib.transfer_queue.blocks import Block, DenseBlock
from kitlib.transfer_queue.storage import StorageUnits


def block_of(*values: float) -> Block:
    return DenseBlock(torch.tensor(values))


def rows(storage: StorageUnits, indexes: list[int], field: str) -> list[float]:
    blocks, numbers = storage.get(indexes, [field])[field]
    return [block.row(number).item() for block, number in zip(blocks, numbers, strict=True)]


def test_rows_are_spread_and_come_back_in_the_order_asked_for() -> None:
    storage = StorageUnits(3)
    storage.put([7, 2, 5, 0], {"x": block_of(7, 2, 5, 0), "y": block_of(70, 20, 50, 0)})
    assert rows(storage, [0, 5, 7, 5], "x") == [0, 5, 7, 5]
    assert rows(storage, [2, 7], "y") == [20, 70]


def test_clear_drops_rows_and_overwrite_replaces_them() -> None:
    storage = StorageUnits(2)
    storage.put([0, 1, 2], {"x": block_of(0, 1, 2)})
    storage.put([1], {"x": block_of(10)})
    storage.clear([0, 9])
    assert rows(storage, [2, 1], "x") == [2, 10]
    with pytest.raises(KeyError):
        storage.get([0], ["x"])


def test_a_put_to_some_rows_of_an_earlier_put_leaves_the_others_alone() -> None:
    storage = StorageUnits(1)
    storage.put([0, 1, 2], {"x": block_of(0, 1, 2), "y": block_of(5, 6, 7)})
    storage.put([1, 3, 1], {"x": block_of(10, 30, 11)})
    assert rows(storage, [0, 1, 2, 3], "x") == [0, 11, 2, 30]
    assert rows(storage, [0, 1, 2], "y") == [5, 6, 7]
    with pytest.raises(KeyError):
        storage.get([3], ["y"])


@pytest.mark.parametrize("how", ["clear", "overwrite", "close"])
def test_values_are_freed_when_their_last_row_goes(how: str) -> None:
    tq = TransferQueue()
    tq.kv_batch_put(["a", "b"], "p", TensorDict({"x": torch.ones(2, 3)}, batch_size=2))
    block = weakref.ref(tq._storage.get([0], ["x"])["x"][0][0])
    tq.kv_clear("a", "p")
    gc.collect()
    assert block() is not None  # b is still there
    if how == "clear":
        tq.kv_clear("b", "p")
    elif how == "overwrite":
        tq.kv_put("b", "p", {"x": torch.ones(3)})
    else:
        tq.close()
    gc.collect()
    assert block() is None


def test_a_get_of_one_field_does_not_touch_the_others() -> None:
    tq = TransferQueue()
    tq.kv_put("a", "p", {"x": torch.ones(3), "y": torch.ones(3)})
    tq._storage.units[0]._rows[0]["y"].row = None  # type: ignore[assignment, method-assign]
    assert tq.kv_batch_get("a", "p", "x")["x"].values().tolist() == [1, 1, 1]


class FreshMemory(TorchDispatchMode):
    """Adds up the bytes of memory that the calls inside take for their results."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(args) if type(leaf) is torch.Tensor}
        result = func(*args, **(kwargs or {}))
        if type(result) is torch.Tensor and result.untyped_storage().data_ptr() not in known:
            self.num_bytes += result.untyped_storage().nbytes()
        return result


@pytest.mark.parametrize("layout", ["dense", "jagged", "single row"])
def test_a_put_copies_a_tensor_once_and_a_get_once_more(layout: str) -> None:
    length = 10_000
    values = torch.ones(2, length)
    columns = {"dense": values, "jagged": jagged([values[0], values[1, 1:]]), "single row": values[:1]}
    rows, tq = len(columns[layout]), TransferQueue()
    for verb in ("put", "get"):
        with FreshMemory() as fresh:
            if verb == "get":
                tq.kv_batch_get(["a", "b"][:rows], "p")
            elif layout == "single row":
                tq.kv_put("a", "p", {"x": values[0]})
            else:
                tq.kv_batch_put(["a", "b"], "p", TensorDict({"x": columns[layout]}, batch_size=rows))
        assert 0.99 < fresh.num_bytes / (rows * length * 4) < 1.01, verb


def test_needs_a_unit() -> None:
    with pytest.raises(QueueValueError, match="num_storage_units"):
        TransferQueue(num_storage_units=0)
