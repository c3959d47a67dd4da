"""What changed between two snapshots, and snapshots as files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kitlib.transfer_queue import QueueFileError, TransferQueue, diff, load_snapshot, save_snapshot, take_snapshot
from kitlib.transfer_queue.diff import MISSING


@pytest.fixture
def tq() -> TransferQueue:
    queue = TransferQueue()
    for key in "abc":
        queue.kv_put(key, "p", {"x": torch.ones(2), "y": torch.ones(1)}, tag={"t": 1})
    queue.kv_put("v", "q", tag={})
    return queue


def test_nothing_changed(tq: TransferQueue) -> None:
    assert not diff(take_snapshot(tq), take_snapshot(tq))


def test_names_every_kind_of_change(tq: TransferQueue) -> None:
    before = take_snapshot(tq)
    tq.kv_put("a", "p", {"z": torch.ones(3)}, tag={"t": 2, "new": True})
    tq.kv_put("b", "p", {"x": torch.ones(5), "y": torch.zeros(1)})
    tq.kv_clear("c", "p")
    tq.kv_put("c", "q", {"x": torch.ones(2)})
    tq.kv_put("d", "p", tag={})
    changed = diff(before, take_snapshot(tq))
    part = changed.partitions["p"]
    assert (part.rows_added, part.rows_cleared) == (("d",), ("c",))
    assert part.fields_added == {"z": ("a",)}
    assert [(o.key, o.field, o.before.shape, o.after.shape) for o in part.overwritten] == [("b", "x", (2,), (5,))]
    assert part.tags_changed == {"a": {"t": (1, 2), "new": (MISSING, True)}}
    assert changed.rows_moved == {"c": ("p", "q")}
    assert changed.seconds >= 0


def test_a_row_that_was_cleared_and_came_back_lost_its_fields_and_its_place(tq: TransferQueue) -> None:
    before = take_snapshot(tq)
    tq.kv_clear("a", "p")
    tq.kv_put("a", "p", {"x": torch.ones(2)}, tag={"t": 1})
    part = diff(before, take_snapshot(tq)).partitions["p"]
    assert part.fields_removed == {"y": ("a",)}
    assert part.order_changed
    assert not part.rows_added


def test_compares_snapshots_of_different_queues(tq: TransferQueue) -> None:
    other = TransferQueue()
    other.kv_put("a", "p", {"y": torch.ones(1)}, tag={"t": 1})
    part = diff(take_snapshot(tq), take_snapshot(other)).partitions["p"]
    assert part.rows_cleared == ("b", "c")
    assert part.fields_removed == {"x": ("a",)}
    assert part.overwritten == ()


class TestFile:
    def test_comes_back_as_it_was(self, tq: TransferQueue, tmp_path: Path) -> None:
        tq.kv_put("a", "p", tag={"nested": {"k": [1, None]}, "nan": float("inf"), "tensor": torch.ones(1)})
        snapshot = take_snapshot(tq)
        loaded = load_snapshot(save_snapshot(snapshot, tmp_path / "queue.snapshot"))
        assert not diff(take_snapshot(tq, "q"), load_snapshot(save_snapshot(take_snapshot(tq, "q"), tmp_path / "q")))
        assert loaded.taken_at == snapshot.taken_at
        part, again = snapshot.partitions["p"], loaded.partitions["p"]
        assert (again.keys, again.fields, again.cells) == (part.keys, part.fields, part.cells)
        assert np.array_equal(again.codes, part.codes)
        assert again.last_writes == part.last_writes
        assert again.last_write("a") is not None
        assert again.tag_of("a") == {
            "t": 1,
            "nested": {"k": [1, None]},
            "nan": float("inf"),
            "tensor": "tensor([1.])",
        }

    def test_refuses_a_truncated_or_foreign_file(self, tq: TransferQueue, tmp_path: Path) -> None:
        path = save_snapshot(take_snapshot(tq), tmp_path / "s")
        whole = path.read_bytes()
        for size in (0, 10, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(QueueFileError, match="truncated"):
                load_snapshot(path)
        np.savez(tmp_path / "foreign.npz", weights=np.ones(3))
        with pytest.raises(QueueFileError, match=r"foreign\.npz"):
            load_snapshot(tmp_path / "foreign.npz")
        with pytest.raises(FileNotFoundError):
            load_snapshot(tmp_path / "nope")

    def test_refuses_a_later_version(self, tmp_path: Path) -> None:
        header = json.dumps({"schema": "kitlib.queue_snapshot", "version": 99, "taken_at": 0, "partitions": []})
        with open(tmp_path / "later", "wb") as file:
            np.savez(file, **{"header.json": np.frombuffer(header.encode(), dtype=np.uint8)})  # type: ignore[arg-type]
        with pytest.raises(QueueFileError, match="version 99"):
            load_snapshot(tmp_path / "later")
