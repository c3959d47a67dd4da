"""KVBatchMeta: checks, selection, order, parts."""

from __future__ import annotations

import pytest
import torch

from kitlib.transfer_queue import KVBatchMeta, QueueRuntimeError, QueueValueError


def meta(keys: str = "abc", **options: object) -> KVBatchMeta:
    return KVBatchMeta(list(keys), [{"k": key} for key in keys], "train", **options)  # type: ignore[arg-type]


def test_size_len_and_str() -> None:
    batch = meta(fields=["x"], extra_info={"temperature": 1.0})
    assert (batch.size, len(batch)) == (3, 3)
    assert str(batch) == "KVBatchMeta(size=3, field_names=['x'], extra_info={'temperature': 1.0})"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"keys": ["a"], "tags": []}, "same length"),
        ({"keys": ["a", "a"], "tags": [{}, {}]}, "duplicated keys.*'a'"),
        ({"keys": ["a"], "tags": [{}], "fields": ["x", "x"]}, "duplicated fields.*'x'"),
    ],
)
def test_refuses(arguments: dict, words: str) -> None:
    with pytest.raises(QueueValueError, match=words):
        KVBatchMeta(**arguments)


def test_tags_and_extra_info_are_copies() -> None:
    tags, info = [{"parts": [1]}], {"weights": [1]}
    batch = KVBatchMeta(["a"], tags, "p", None, info)
    part = batch.select_keys(["a"])
    part.tags[0]["parts"].append(2)
    part.extra_info["weights"].append(2)  # type: ignore[index]
    assert (batch.tags, batch.extra_info) == ([{"parts": [1]}], {"weights": [1]})
    assert (tags, info) == ([{"parts": [1]}], {"weights": [1]})


def test_select_keys() -> None:
    part = meta(fields=["x"], extra_info={"t": 1}).select_keys(["c", "a"])
    assert (part.keys, [tag["k"] for tag in part.tags]) == (["c", "a"], ["c", "a"])
    assert (part.partition_id, part.fields, part.extra_info) == ("train", ["x"], {"t": 1})
    with pytest.raises(QueueRuntimeError, match="'z'"):
        meta().select_keys(["z"])
    with pytest.raises(QueueValueError, match="duplicate"):
        meta().select_keys(["a", "a"])


def test_reorder_is_in_place() -> None:
    batch = meta()
    batch.reorder([2, 0, 1])
    assert (batch.keys, [tag["k"] for tag in batch.tags]) == (["c", "a", "b"], ["c", "a", "b"])
    with pytest.raises(QueueValueError, match="batch size of 3"):
        batch.reorder([0, 1])
    with pytest.raises(QueueValueError, match="duplicate"):
        batch.reorder([0, 0, 1])


def test_chunk_gives_longer_parts_first() -> None:
    assert [part.keys for part in meta("abcde").chunk(3)] == [["a", "b"], ["c", "d"], ["e"]]
    assert [part.keys for part in meta("a").chunk(2)] == [["a"], []]


def test_concat_undoes_chunk() -> None:
    batch = meta("abcde", fields=["x"], extra_info={"t": torch.ones(2)})
    joined = KVBatchMeta.concat([KVBatchMeta(), *batch.chunk(3)])
    assert (joined.keys, joined.tags, joined.fields) == (batch.keys, batch.tags, batch.fields)
    assert torch.equal(joined.extra_info["t"], torch.ones(2))  # type: ignore[index]


def test_concat_of_nothing_is_empty_and_of_plain_parts_has_no_extra_info() -> None:
    assert KVBatchMeta.concat([]) == KVBatchMeta()
    assert KVBatchMeta.concat([meta("a"), meta("b")]).extra_info is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (KVBatchMeta(["z"], [{}], "val", ["x"], {"t": 1}), "Partition do not match"),
        (KVBatchMeta(["z"], [{}], "train", ["y"], {"t": 1}), "Field names do not match"),
        (KVBatchMeta(["z"], [{}], "train", ["x"], {"t": 2}), "extra_info key 't' has conflicting values"),
        (KVBatchMeta(["a"], [{}], "train", ["x"], {"t": 1}), "duplicated keys"),
    ],
)
def test_concat_refuses(other: KVBatchMeta, words: str) -> None:
    with pytest.raises(QueueValueError, match=words):
        KVBatchMeta.concat([meta(fields=["x"], extra_info={"t": 1}), other])
