"""The verbs on every backend: the in-process queue answers as the TransferQueue package 0.1.11 does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from kitlib.transfer_queue import (
    KVBatchMeta,
    jagged,
)


def batch(**columns: object) -> TensorDict:
    size = len(next(iter(columns.values())))  # type: ignore[arg-type]
    return TensorDict(
        {n: NonTensorStack(*c) if isinstance(c, list) else c for n, c in columns.items()}, batch_size=size
    )


def ragged(*lengths: int) -> torch.Tensor:
    return jagged([torch.arange(length) for length in lengths])


def lists(column: torch.Tensor) -> list[list[int]]:
    return [row.tolist() for row in column.unbind()]


class TestPut:
    def test_returns_merged_tags_and_all_fields_in_order_of_their_names(self, tq: Any) -> None:
        tq.kv_batch_put(["a", "b"], "train", batch(z=ragged(1, 2)), [{"s": 1, "t": 1}, {"s": 2}])
        meta = tq.kv_batch_put(["b", "a"], "train", batch(x=ragged(3, 4)), [{"t": 5}, {}])
        assert meta == KVBatchMeta(["b", "a"], [{"s": 2, "t": 5}, {"s": 1, "t": 1}], "train", ["x", "z"], {})

    def test_reports_only_fields_that_all_its_keys_have(self, tq: Any) -> None:
        tq.kv_put("a", "train", {"x": torch.ones(2)})
        tq.kv_put("b", "train", {"y": torch.ones(2)})
        assert tq.kv_batch_put(["a", "b"], "train", tags=[{}, {}]).fields == []
        assert tq.kv_batch_put(["a", "b"], "train", batch(z=torch.ones(2, 2))).fields == ["z"]

    def test_tag_only_put_keeps_fields(self, tq: Any) -> None:
        tq.kv_put("a", "train", {"x": torch.tensor([1, 2])}, tag={"status": "running"})
        assert tq.kv_put("a", "train", tag={"status": "success"}).fields == ["x"]
        assert lists(tq.kv_batch_get("a", "train")["x"]) == [[1, 2]]

    def test_a_tag_for_a_cleared_key_makes_a_ghost(self, tq: Any) -> None:
        tq.kv_put("a", "train", {"x": torch.ones(2)}, tag={"status": "running", "global_steps": 3})
        tq.kv_clear("a", "train")
        assert tq.kv_put("a", "train", tag={"status": "finished"}).fields == []
        assert tq.kv_list("train") == {"train": {"a": {"status": "finished"}}}

    def test_overwrites_with_another_length_and_dtype(self, tq: Any) -> None:
        tq.kv_put("a", "train", {"x": torch.tensor([1, 2])})
        tq.kv_put("a", "train", {"x": torch.tensor([0.5])})
        assert tq.kv_batch_get("a", "train")["x"].unbind()[0].tolist() == [0.5]

    def test_never_compares_lengths_of_two_fields(self, tq: Any) -> None:
        tq.kv_batch_put(["a", "b"], "train", batch(responses=ragged(3, 5), response_mask=ragged(3, 4)))
        assert len(tq.kv_batch_get(["a", "b"], "train")) == 2

    @pytest.mark.parametrize(
        ("put", "error", "listed"),
        [
            (lambda tq: tq.kv_put("a", "p"), ValueError, {}),
            (lambda tq: tq.kv_batch_put(["a"], "p"), ValueError, {}),
            (lambda tq: tq.kv_batch_put([], "p", tags=[]), ValueError, {}),
            (lambda tq: tq.kv_batch_put(("a",), "p", tags=[{}]), TypeError, {}),
            (lambda tq: tq.kv_batch_put([1], "p", tags=[{}]), TypeError, {}),
            (lambda tq: tq.kv_batch_put(["a"], "p", batch(x=torch.ones(2, 1))), ValueError, {}),
            (lambda tq: tq.kv_put("a", "p", {"x": ragged(1, 2)}, tag={"t": 1}), ValueError, {"a": {}}),
            (lambda tq: tq.kv_put("a", "p", "text", tag={"t": 1}), ValueError, {"a": {}}),
            (lambda tq: tq.kv_put("a", "p", tag=[1]), TypeError, {"a": {}}),
            (lambda tq: tq.kv_batch_put(["a", "b"], "p", tags=[{"t": 1}]), ValueError, {"a": {}, "b": {}}),
            (lambda tq: tq.kv_batch_put("ab", "p", tags=[{}]), RuntimeError, {"ab": {}}),
            (
                lambda tq: tq.kv_batch_put(
                    ["a"], "p", TensorDict({"x": NonTensorData(5, batch_size=[1])}, batch_size=1)
                ),
                TypeError,
                {"a": {}},
            ),
        ],
    )
    def test_refused_put_and_what_it_leaves(self, tq: Any, put, error, listed) -> None:
        with pytest.raises(error):
            put(tq)
        assert tq.kv_list("p").get("p", {}) == listed

    def test_duplicate_keys_are_refused_after_storing(self, tq: Any) -> None:
        with pytest.raises(ValueError, match="duplicated keys"):
            tq.kv_batch_put(["a", "a"], "p", batch(x=ragged(2, 3)), [{"i": 1, "j": 1}, {"i": 2}])
        assert tq.kv_list("p") == {"p": {"a": {"i": 2}}}
        assert lists(tq.kv_batch_get("a", "p")["x"]) == [[0, 1, 2]]

    def test_shares_no_memory_with_the_caller(self, tq: Any) -> None:
        dense, nested, message = torch.zeros(2, 3), ragged(1, 2), {"content": ["hi"]}
        tag = {"parts": [1]}
        tq.kv_batch_put(["a", "b"], "p", batch(d=dense, j=nested, o=[message, 1]), [tag, {}])
        dense.fill_(7), nested.values().fill_(7), message["content"].append("x"), tag["parts"].append(2)
        got = tq.kv_batch_get(["a", "b"], "p")
        assert got["d"].values().tolist() == [0] * 6
        assert lists(got["j"]) == [[0], [0, 1]]
        assert list(got["o"]) == [{"content": ["hi"]}, 1]
        assert tq.kv_list("p")["p"]["a"] == {"parts": [1]}

    def test_data_parser_may_change_values_but_not_fields(self, tq: Any) -> None:
        fields = batch(path=["1", "2"])
        tq.kv_batch_put(["a", "b"], "p", fields, data_parser=lambda data: {"path": [int(v) for v in data["path"]]})
        assert list(tq.kv_batch_get(["a", "b"], "p")["path"]) == [1, 2]
        with pytest.raises(RuntimeError):
            tq.kv_batch_put(["a", "b"], "p", fields, data_parser=lambda data: {"other": [1, 2]})
        with pytest.raises(RuntimeError):
            tq.kv_batch_put(["a", "b"], "p", fields, data_parser=lambda data: data["nope"])

    def test_data_parser_sees_the_row_of_a_kv_put_as_a_batch_of_one(self, tq: Any) -> None:
        seen = {}
        tq.kv_put("a", "p", {"x": torch.tensor([1, 2]), "o": "3"}, data_parser=lambda data: seen.update(data) or data)
        if seen:  # the package runs the parser in another process
            assert (seen["x"].tolist(), list(seen["o"])) == ([[1, 2]], ["3"])
        data = tq.kv_batch_get("a", "p")
        assert (lists(data["x"]), list(data["o"])) == ([[1, 2]], ["3"])


class TestGet:
    def test_rows_follow_the_order_of_the_keys_and_may_repeat(self, tq: Any) -> None:
        tq.kv_batch_put(["a", "b"], "p", batch(x=ragged(1, 2)))
        assert lists(tq.kv_batch_get(["b", "a", "b"], "p")["x"]) == [[0, 1], [0], [0, 1]]

    def test_unknown_keys_are_left_out(self, tq: Any) -> None:
        tq.kv_put("a", "p", {"x": torch.ones(2)})
        assert tq.kv_batch_get(["a", "nope"], "p").batch_size == torch.Size([1])

    @pytest.mark.parametrize(("keys", "partition"), [(["nope"], "p"), (["a"], "elsewhere")])
    def test_nothing_found(self, tq: Any, keys: list[str], partition: str) -> None:
        tq.kv_put("a", "p", {"x": torch.ones(2)})
        with pytest.raises(ValueError, match="keys or partition were not found"):
            tq.kv_batch_get(keys, partition)

    def test_a_field_that_one_row_lacks_is_left_out_for_all(self, tq: Any) -> None:
        tq.kv_batch_put(["a", "b"], "p", batch(x=ragged(1, 2), y=ragged(1, 2)))
        tq.kv_put("c", "p", {"x": torch.ones(2)})
        assert list(tq.kv_batch_get(["a", "b", "c"], "p", ["x", "y"]).keys()) == ["x"]

    def test_one_key_with_tags_only_spoils_the_get(self, tq: Any) -> None:
        tq.kv_put("a", "p", {"x": torch.ones(2)})
        tq.kv_put("b", "p", tag={"t": 1})
        with pytest.raises(ValueError, match="Some fields are not ready in all the requested keys!"):
            tq.kv_batch_get(["a", "b"], "p", "x")

    @pytest.mark.parametrize("select", ["unknown", [], ["unknown"]])
    def test_no_known_field_gives_an_empty_batch(self, tq: Any, select: object) -> None:
        tq.kv_put("a", "p", {"x": torch.ones(2)})
        got = tq.kv_batch_get("a", "p", select)
        assert got.batch_size == torch.Size([0])
        assert not list(got.keys())

    def test_the_same_key_lives_in_two_partitions(self, tq: Any) -> None:
        tq.kv_put("a", "p", {"x": torch.tensor([1])})
        tq.kv_put("a", "q", {"x": torch.tensor([2])})
        tq.kv_clear("a", "p")
        assert lists(tq.kv_batch_get("a", "q")["x"]) == [[2]]

    def test_what_it_returns_is_the_readers_own(self, tq: Any) -> None:
        tq.kv_batch_put(["a", "b"], "p", batch(x=ragged(1, 2), o=[{"k": [1]}, 0], s=torch.tensor([1, 2])))
        got = tq.kv_batch_get(["a", "b"], "p")
        got["x"].values().fill_(9), got["s"].fill_(9), got["o"][0]["k"].append(2)
        again = tq.kv_batch_get(["a", "b"], "p")
        assert lists(again["x"]) == [[0], [0, 1]]
        assert again["s"].tolist() == [1, 2]
        assert again["o"][0] == {"k": [1]}


class TestGetByMeta:
    def test_the_fields_of_the_handle_limit_what_is_fetched(self, tq: Any) -> None:
        meta = tq.kv_put("a", "p", {"x": torch.ones(2)})
        tq.kv_put("a", "p", {"y": torch.ones(2)})
        assert list(tq.kv_batch_get_by_meta(meta).keys()) == ["x"]
        meta.fields = None
        assert list(tq.kv_batch_get_by_meta(meta).keys()) == ["x", "y"]

    @pytest.mark.parametrize("fields", [["x"], None])
    def test_select_fields_must_be_in_the_handle(self, tq: Any, fields: list[str] | None) -> None:
        tq.kv_put("a", "p", {"x": torch.ones(2), "y": torch.ones(2)})
        with pytest.raises(ValueError, match=r"select_fields.*not found"):
            tq.kv_batch_get_by_meta(KVBatchMeta(["a"], [{}], "p", fields), select_fields=["y"])

    def test_needs_a_partition(self, tq: Any) -> None:
        with pytest.raises(ValueError, match="partition_id"):
            tq.kv_batch_get_by_meta(KVBatchMeta(["a"], [{}]))


class TestListAndClear:
    def test_keys_keep_the_order_of_their_first_put(self, tq: Any) -> None:
        for key in "bac":
            tq.kv_put(key, "p", tag={"k": key})
        tq.kv_put("b", "p", tag={"again": 1})
        tq.kv_clear("a", "p")
        tq.kv_put("a", "p", tag={})
        assert list(tq.kv_list("p")["p"]) == ["b", "c", "a"]

    def test_unknown_partition_is_empty_and_a_cleared_one_stays_listed(self, tq: Any) -> None:
        assert tq.kv_list("nope") == {}
        tq.kv_put("a", "p", tag={})
        tq.kv_put("a", "q", tag={})
        tq.kv_clear(["a", "a", "nope"], "p")
        assert tq.kv_list() == {"p": {}, "q": {"a": {}}}

    def test_clear_ignores_what_is_not_there_but_refuses_no_keys(self, tq: Any) -> None:
        tq.kv_clear("a", "nope")
        with pytest.raises(ValueError, match="empty list as keys"):
            tq.kv_clear([], "p")

    def test_changing_a_listing_does_not_change_the_queue(self, tq: Any) -> None:
        tq.kv_put("a", "p", tag={"flat": 1, "deep": [1]})
        listed = tq.kv_list()
        listed["p"]["a"]["flat"] = 2
        listed["p"]["a"]["deep"].append(2)
        assert tq.kv_list() == {"p": {"a": {"flat": 1, "deep": [1]}}}

    def test_a_recycled_index_shows_neither_old_values_nor_old_status(self, tq: Any) -> None:
        tq.kv_batch_put(["a", "b"], "p", batch(x=ragged(1, 2), y=ragged(1, 2)), [{"t": 1}, {"t": 2}])
        tq.kv_clear(["a", "b"], "p")
        tq.kv_batch_put(["c", "d"], "p", batch(x=ragged(3, 4)))
        assert list(tq.kv_batch_get(["c", "d"], "p").keys()) == ["x"]
        assert tq.kv_list("p") == {"p": {"c": {}, "d": {}}}


def test_async_twins_answer_the_same_from_several_event_loops(tq: Any) -> None:
    async def fill(key: str) -> KVBatchMeta:
        await tq.async_kv_put(key, "p", {"x": torch.arange(3)}, tag={"k": key})
        await tq.async_kv_batch_put([key], "p", batch(y=torch.ones(1, 2)))
        return await tq.async_kv_put(key, "p", tag={"done": True})

    for key in "ab":
        meta = asyncio.run(fill(key))
        assert meta.fields == ["x", "y"]
        assert list(asyncio.run(tq.async_kv_batch_get([key], "p")).keys()) == ["x", "y"]
    assert list(tq.kv_list()["p"]) == ["a", "b"]
    assert len(asyncio.run(tq.async_kv_batch_get(["a", "b"], "p"))) == 2
    asyncio.run(tq.async_kv_clear(["a", "b"], "p"))
    assert tq.kv_list() == {"p": {}}
