"""QueueSnapshot, explain_get, strict_get, the version counter and capacity."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from kitlib.transfer_queue import (
    Cell,
    KVBatchMeta,
    MissingFieldsError,
    QueueFullError,
    QueueRuntimeError,
    QueueSnapshot,
    QueueTypeError,
    QueueValueError,
    TransferQueue,
    acting_as,
    explain_get,
    jagged,
    strict_get,
    take_snapshot,
    watch,
)


@pytest.fixture
def tq() -> TransferQueue:
    """train: u1 a marker, u1_0_0 and u1_1_0 rows of which the second lacks rm_scores; val: one row."""
    queue = TransferQueue()
    queue.kv_put("u1", "train", tag={"is_prompt": True, "status": "finished"})
    rows = TensorDict(
        {
            "responses": jagged([torch.arange(3), torch.arange(5)]),
            "num_turns": NonTensorStack(1, 2),
            "score": torch.tensor([0.0, 1.0]),
        },
        batch_size=2,
    )
    queue.kv_batch_put(["u1_0_0", "u1_1_0"], "train", rows, [{"seq_len": 3}, {"seq_len": 5}])
    queue.kv_put("u1_0_0", "train", {"rm_scores": torch.zeros(3)})
    queue.kv_put("v_0_0", "val", {"responses": torch.zeros(2, 2, dtype=torch.bool)})
    return queue


class TestSnapshot:
    def test_shows_keys_tags_and_presence(self, tq: TransferQueue) -> None:
        train = take_snapshot(tq).partitions["train"]
        assert train.keys == ("u1", "u1_0_0", "u1_1_0")
        assert train.fields == ("responses", "num_turns", "score", "rm_scores")
        assert train.present.tolist() == [[False] * 4, [True] * 4, [True, True, True, False]]
        assert train.tag_of("u1_1_0") == {"seq_len": 5}
        assert train.fields_of("u1_1_0") == ("responses", "num_turns", "score")
        assert train.has("u1_0_0", "rm_scores")
        assert not train.has("u1_1_0", "rm_scores")
        assert not train.has("u1_1_0", "advantages")

    def test_describes_cells_without_values(self, tq: TransferQueue) -> None:
        snapshot = take_snapshot(tq)
        train = snapshot.partitions["train"]
        assert train.cell("u1_1_0", "responses") == Cell("int64", (5,), "row", 40)
        assert train.cell("u1_1_0", "score") == Cell("float32", (), "scalar", 4)
        turns = train.cell("u1_1_0", "num_turns")
        assert turns is not None
        assert turns[:3] == ("int", (), "object")
        assert train.cell("u1_1_0", "rm_scores") is None
        assert snapshot.partitions["val"].cell("v_0_0", "responses") == Cell("bool", (2, 2), "row", 4)

    def test_is_a_picture_of_its_moment(self, tq: TransferQueue) -> None:
        before = time.time()
        snapshot = take_snapshot(tq)
        tq.kv_put("u1_1_0", "train", {"rm_scores": torch.zeros(5)}, tag={"seq_len": 6})
        tq.kv_clear("u1_0_0", "train")
        train = snapshot.partitions["train"]
        assert before <= snapshot.taken_at <= time.time()
        assert not train.has("u1_1_0", "rm_scores")
        assert train.tag_of("u1_1_0") == {"seq_len": 5}
        assert "u1_0_0" in train

    def test_a_field_that_was_cleared_everywhere_is_gone(self, tq: TransferQueue) -> None:
        tq.kv_clear("u1_0_0", "train")
        assert "rm_scores" not in take_snapshot(tq).partitions["train"].fields

    def test_one_partition_or_none(self, tq: TransferQueue) -> None:
        assert set(take_snapshot(tq).partitions) == {"train", "val"}
        assert set(take_snapshot(tq, "val").partitions) == {"val"}
        assert take_snapshot(tq, "nope").partitions == {}

    def test_says_what_it_cannot_do(self, tq: TransferQueue) -> None:
        with pytest.raises(QueueValueError, match="'nope' is not in partition 'train'"):
            take_snapshot(tq).partitions["train"].tag_of("nope")
        with pytest.raises(QueueTypeError, match="list"):
            take_snapshot([])


class TestLastWrite:
    def test_says_who_put_to_a_key_last_and_how_long_ago(self) -> None:
        tq = TransferQueue()
        with acting_as(stage="rollout", worker="w1"):
            tq.kv_batch_put(["a", "b"], "p", tags=[{}, {}])
        with acting_as(stage="reward"):
            tq.kv_put("b", "p", {"rm_scores": torch.ones(1)})
        snapshot = take_snapshot(tq)
        part = snapshot.partitions["p"]
        a, b = part.last_write("a"), part.last_write("b")
        assert a is not None
        assert b is not None
        assert (a.who, b.who) == ({"stage": "rollout", "worker": "w1"}, {"stage": "reward"})
        assert a.thread == threading.current_thread().name
        assert a.at <= b.at <= snapshot.taken_at
        assert snapshot.age("p", "b") == snapshot.taken_at - b.at

    def test_a_key_that_comes_back_is_signed_anew_and_a_loaded_one_not_at_all(self, tmp_path: Path) -> None:
        tq = TransferQueue()
        tq.kv_put("a", "p", tag={})
        tq.kv_clear("a", "p")
        with acting_as(stage="second"):
            tq.kv_put("a", "p", tag={})
        write = take_snapshot(tq).partitions["p"].last_write("a")
        assert write is not None
        assert write.who == {"stage": "second"}
        tq.save_checkpoint(tmp_path)
        tq.load_checkpoint(tmp_path)
        assert take_snapshot(tq).age("p", "a") is None

    def test_a_watched_queue_that_keeps_none_is_signed_from_the_log(self) -> None:
        class Unsigned(TransferQueue):
            """As the package: pictures without last writes."""

            def snapshot(self, partition_id: str | None = None, keys: Any = None) -> QueueSnapshot:
                snapshot = super().snapshot(partition_id, keys)
                parts = {name: replace(part, last_writes=()) for name, part in snapshot.partitions.items()}
                return replace(snapshot, partitions=parts)

        queue = Unsigned()
        queue.kv_put("before", "p", tag={})
        tq = watch(queue)
        with acting_as(stage="s"):
            tq.kv_batch_put(["a", "gone"], "p", tags=[{}, {}])
        tq.kv_clear("gone", "p")
        with pytest.raises(QueueValueError):
            tq.kv_batch_get("a", "p")
        queue.kv_put("gone", "p", tag={})
        part = take_snapshot(tq).partitions["p"]
        write = part.last_write("a")
        assert write is not None
        assert write.who == {"stage": "s"}
        assert [part.last_write(key) for key in ("before", "gone")] == [None, None]


class TestExplainGet:
    def test_complete(self, tq: TransferQueue) -> None:
        report = explain_get(tq, ["u1_0_0", "u1_1_0"], ["responses", "score"], "train")
        assert report.ok
        assert "complete" in str(report)

    def test_names_everything_a_plain_get_would_drop(self, tq: TransferQueue) -> None:
        report = explain_get(tq, ["u1_0_0", "u1_1_0", "gone_0_0"], ["responses", "rm_scores", "rm_score"], "train")
        assert not report.ok
        assert report.missing_keys == ["gone_0_0"]
        assert report.missing_cells == [("u1_1_0", "rm_scores"), ("u1_0_0", "rm_score"), ("u1_1_0", "rm_score")]
        assert report.dropped_fields == ["rm_scores"]
        assert report.unknown_fields == {"rm_score": ["rm_scores", "score"]}
        text = str(report)
        assert "rm_scores: 1 of 2 rows lack it: u1_1_0" in text
        assert "near names: rm_scores" in text
        assert "gone_0_0" in text

    def test_without_fields_it_takes_those_of_the_rows_or_of_the_handle(self, tq: TransferQueue) -> None:
        keys = ["u1_0_0", "u1_1_0"]
        assert explain_get(tq, keys, partition_id="train").dropped_fields == ["rm_scores"]
        handle = KVBatchMeta(keys, [{}, {}], "train", ["score"])
        assert explain_get(tq, handle).requested_fields == ["score"]
        assert explain_get(tq, handle).ok

    def test_unknown_partition(self, tq: TransferQueue) -> None:
        assert explain_get(tq, "a", "x", "nope").missing_keys == ["a"]
        with pytest.raises(QueueValueError, match="which partition"):
            explain_get(tq, "a")


class TestStrictGet:
    def test_returns_what_a_plain_get_returns(self, tq: TransferQueue) -> None:
        got = strict_get(tq, ["u1_1_0", "u1_0_0"], "score", "train")
        assert got["score"].tolist() == [1.0, 0.0]

    @pytest.mark.parametrize(
        ("keys", "fields", "words"),
        [
            (["u1_0_0", "u1_1_0"], ["rm_scores"], "rm_scores: 1 of 2 rows lack it: u1_1_0"),
            (["u1_0_0", "nope"], ["score"], "1 keys do not exist: nope"),
            (["nope"], ["score"], "1 keys do not exist: nope"),
            (["u1_0_0", "u1"], ["score"], "score: 1 of 2 rows lack it: u1"),
            (["u1_0_0"], ["scores"], "scores: no row of the partition has it; near names: score"),
        ],
    )
    def test_names_what_is_missing(self, tq: TransferQueue, keys: list[str], fields: list[str], words: str) -> None:
        with pytest.raises(MissingFieldsError, match=words):
            strict_get(tq, keys, fields, "train")

    def test_a_wrong_argument_stays_a_wrong_argument(self, tq: TransferQueue) -> None:
        with pytest.raises(QueueValueError, match="empty list"):
            strict_get(tq, [], ["score"], "train")


class TestVersion:
    def test_grows_with_changes_only(self, tq: TransferQueue) -> None:
        version = tq.version
        tq.kv_list(), tq.kv_batch_get("v_0_0", "val"), take_snapshot(tq), tq.kv_clear("nope", "val")
        assert tq.version == version
        for change in (
            lambda: tq.kv_put("new", "val", tag={}),
            lambda: tq.kv_put("new", "val", {"x": torch.ones(1)}),
            lambda: tq.kv_clear("new", "val"),
        ):
            change()
            assert tq.version > version
            version = tq.version

    def test_wait_returns_at_once_if_something_changed_already(self, tq: TransferQueue) -> None:
        assert tq.wait_for_change(tq.version - 1, timeout=0) == tq.version

    def test_wait_times_out_with_the_same_version(self, tq: TransferQueue) -> None:
        assert tq.wait_for_change(tq.version, timeout=0.01) == tq.version

    @pytest.mark.parametrize("change", [lambda tq: tq.kv_put("n", "val", tag={}), lambda tq: tq.close()])
    def test_wait_wakes_up_at_a_change(self, tq: TransferQueue, change) -> None:
        since = tq.version
        seen: list[int] = []
        waiter = threading.Thread(target=lambda: seen.append(tq.wait_for_change(since, timeout=200)), daemon=True)
        waiter.start()
        change(tq)
        waiter.join(timeout=100)
        assert seen
        assert seen[0] > since


class TestCapacity:
    def test_rows(self) -> None:
        tq = TransferQueue(total_storage_size=2)
        tq.kv_batch_put(["a", "b"], "p", TensorDict({"x": torch.ones(2, 1)}, batch_size=2))
        tq.kv_put("marker", "p", tag={"free": True})
        tq.kv_put("a", "p", {"y": torch.ones(1)})
        with pytest.raises(QueueFullError, match=r"2 rows \+ 1 new > total_storage_size=2"):
            tq.kv_put("c", "p", {"x": torch.ones(1)}, tag={"t": 1})
        assert tq.kv_list("p")["p"]["c"] == {}
        tq.kv_clear("a", "p")
        tq.kv_put("c", "p", {"x": torch.ones(1)})

    def test_bytes_are_given_back_by_clear_and_by_overwrite(self) -> None:
        tq = TransferQueue(max_bytes=100)
        for _ in range(5):
            tq.kv_put("a", "p", {"x": torch.ones(10)})
        with pytest.raises(QueueFullError, match=r"40 bytes \+ 80 new > max_bytes=100"):
            tq.kv_put("b", "p", {"x": torch.ones(20)})
        tq.kv_clear("a", "p")
        tq.kv_put("b", "p", {"x": torch.ones(20)})


def test_a_closed_queue_says_so(tq: TransferQueue) -> None:
    tq.close()
    tq.close()
    with pytest.raises(QueueRuntimeError, match="closed"):
        tq.kv_list()


def test_threads_never_see_a_value_under_another_key() -> None:
    """Writers put and clear keys whose row holds their own number; readers must see that number or no row at all."""
    tq = TransferQueue(num_storage_units=3)
    stop, wrong = threading.Event(), []

    def write(number: int) -> None:
        for _ in range(60):
            tq.kv_put(f"k{number}", "p", {"x": torch.full((4,), number)}, tag={"n": number})
            tq.kv_clear(f"k{number}", "p")

    def read() -> None:
        while not stop.is_set():
            for key, tag in tq.kv_list("p").get("p", {}).items():
                try:
                    row = tq.kv_batch_get(key, "p")["x"].values().tolist()
                except QueueValueError:
                    continue  # cleared or not yet published
                if row != [int(key[1:])] * 4 or tag not in ({}, {"n": int(key[1:])}):
                    wrong.append((key, tag, row))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in writers + readers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    assert tq.kv_list() == {"p": {}}
    assert take_snapshot(tq).partitions["p"].keys == ()


def test_a_picture_of_a_few_keys_shows_them_as_the_whole_one_does() -> None:
    tq = TransferQueue()
    tq.kv_batch_put(["a", "b", "c"], "p", tags=[{"t": 1}, {"t": 2}, {"t": 3}])
    tq.kv_put("b", "p", {"x": torch.ones(2)})
    tq.kv_put("a", "p", {"y": torch.ones(3)})
    few, whole = (tq.snapshot("p", keys).partitions["p"] for keys in (["c", "b", "gone"], None))
    assert few.keys == ("c", "b")
    assert few.fields == ("x",)  # nobody in the picture has y
    assert [few.tag_of(key) for key in few.keys] == [{"t": 3}, {"t": 2}]
    assert (few.cell("b", "x"), few.cell("c", "x")) == (whole.cell("b", "x"), None)
    assert tq.snapshot("q", ["a"]).partitions == {}
