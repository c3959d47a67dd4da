"""DataProto: what its operations do to rows and columns, alone and beside verl's class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.trainer.v0 import (
    DataProto,
    DataProtoError,
    DataProtoItem,
    pad_dataproto_to_divisor,
    unpad_dataproto,
)
from kitlib.trainer.v0.columns import merge_meta_info, object_column, same

NUM_ROWS = 6


def example(make: Any = DataProto) -> Any:
    """Six rows with a tensor column, two object columns and a constant."""
    return make.from_dict(
        tensors={"x": torch.arange(NUM_ROWS * 2).view(NUM_ROWS, 2), "y": torch.arange(NUM_ROWS).float()},
        non_tensors={
            "uid": object_column([f"u{row // 2}" for row in range(NUM_ROWS)]),
            "info": object_column([{"row": row, "lists": [row, row]} for row in range(NUM_ROWS)]),
        },
        meta_info={"step": 3},
    )


def content(data: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Everything in it as plain lists."""
    tensors = {} if data.batch is None else {name: column.tolist() for name, column in data.batch.items()}
    return tensors, {name: column.tolist() for name, column in data.non_tensor_batch.items()}, dict(data.meta_info)


def in_place(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(data: Any) -> Any:
        change(data)
        return data

    return run


def union_with_more(data: Any) -> Any:
    more = {
        "tensors": {"z": torch.ones(NUM_ROWS), "y": torch.arange(NUM_ROWS).float()},
        "meta_info": {"step": 3, "n": 1},
    }
    return data.union(type(data).from_dict(**more, non_tensors={"w": object_column(list("abcdef"))}))


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda d: d[1:5:2],
    "slice to the end": lambda d: d.slice(4, None),
    "rows by number": lambda d: d[[4, 0, 0]],
    "rows by array": lambda d: d[np.array([5, 1])],
    "rows by mask": lambda d: d.select_idxs(torch.tensor([True, False, True, False, False, True])),
    "rows by mask list": lambda d: d[[True, False, False, False, False, True]],
    "repeat interleaved": lambda d: d.repeat(2, interleave=True),
    "repeat whole": lambda d: d.repeat(3, interleave=False),
    "reorder": in_place(lambda d: d.reorder(torch.tensor([5, 4, 3, 2, 1, 0]))),
    "second chunk": lambda d: d.chunk(3)[1],
    "concat": lambda d: type(d).concat(d.chunk(2)),
    "select": lambda d: d.select(["x"], ["uid"], []),
    "select all": lambda d: d.select(),
    "pop": lambda d: d.pop(batch_keys=["y"], non_tensor_batch_keys=["info"], meta_info_keys=["step"]),
    "what pop leaves": in_place(lambda d: d.pop(batch_keys=["y"], non_tensor_batch_keys=["info"])),
    "union": union_with_more,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_verls(name: str) -> None:
    verl = pytest.importorskip("verl.protocol", reason="needs the verl package to compare with")
    assert content(OPERATIONS[name](example())) == content(OPERATIONS[name](example(verl.DataProto)))


def test_padding_is_verls() -> None:
    verl = pytest.importorskip("verl.protocol", reason="needs the verl package to compare with")
    for divisor in (1, 4, 6, 13):
        ours, num_ours = pad_dataproto_to_divisor(example(), divisor)
        theirs, num_theirs = verl.pad_dataproto_to_divisor(example(verl.DataProto), divisor)
        assert (content(ours), num_ours) == (content(theirs), num_theirs)


def test_rows_and_columns_of_each_operation() -> None:
    results = {name: operation(example()) for name, operation in OPERATIONS.items()}
    ys = {
        name: result.batch["y"].tolist()
        for name, result in results.items()
        if result.batch is not None and "y" in result.batch
    }
    assert ys["slice"] == [1, 3]
    assert ys["slice to the end"] == [4, 5]
    assert ys["rows by number"] == [4, 0, 0]
    assert ys["rows by mask"] == [0, 2, 5]
    assert ys["repeat interleaved"] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert ys["repeat whole"] == [0, 1, 2, 3, 4, 5] * 3
    assert ys["reorder"] == [5, 4, 3, 2, 1, 0]
    assert ys["second chunk"] == [2, 3]
    assert ys["concat"] == [0, 1, 2, 3, 4, 5]
    for result in results.values():
        assert all(len(column) == len(result) for column in result.non_tensor_batch.values())
    assert results["reorder"].non_tensor_batch["uid"].tolist() == ["u2", "u2", "u1", "u1", "u0", "u0"]
    assert content(results["what pop leaves"])[1].keys() == {"uid"}
    assert content(results["pop"])[2] == {"step": 3}
    assert set(results["union"].batch.keys()) == {"x", "y", "z"}
    assert results["union"].meta_info == {"step": 3, "n": 1}


def test_a_number_gives_a_row() -> None:
    item = example()[3]
    assert isinstance(item, DataProtoItem)
    assert item.batch["x"].tolist() == [6, 7]
    assert item.non_tensor_batch["info"]["row"] == 3


def test_padding_copies_the_first_rows_and_comes_off_again() -> None:
    padded, num_pads = pad_dataproto_to_divisor(example(), 16)
    assert num_pads == 10
    assert padded.batch["y"].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert content(unpad_dataproto(padded, num_pads)) == content(example())


def test_union_refuses_what_differs_and_names_it() -> None:
    for other in (
        DataProto.from_dict({"y": torch.zeros(NUM_ROWS)}),
        DataProto.from_dict(non_tensors={"uid": object_column(["v"] * NUM_ROWS)}),
        DataProto.from_dict({"z": torch.zeros(NUM_ROWS)}, meta_info={"step": 4}),
    ):
        name = next(iter({"y", "uid", "step"} & {*content(other)[0], *content(other)[1], *content(other)[2]}))
        with pytest.raises(DataProtoError, match=f"'{name}' and it differs"):
            example().union(other)
    with pytest.raises(DataProtoError, match="union of 6 and 2 rows"):
        example().union(example()[:2])


def test_what_does_not_fit_together_is_refused_by_name() -> None:
    with pytest.raises(DataProtoError, match="6 rows are no 4 equal chunks"):
        example().chunk(4)
    with pytest.raises(DataProtoError, match="batch has no 'nothing'; it has x, y"):
        example().pop(batch_keys=["nothing"])
    with pytest.raises(DataProtoError, match="'uid' has 2 rows, the batch has 1"):
        DataProto.from_dict({"x": torch.zeros(1)}, {"uid": object_column(["a", "b"])})
    with pytest.raises(DataProtoError, match="'q' is a list"):
        DataProto.from_single_dict({"q": [1, 2]})  # type: ignore[dict-item]
    with pytest.raises(DataProtoError, match="'info' is a column of some parts only"):
        DataProto.concat([example(), example().select(non_tensor_batch_keys=["uid"])])


def test_metrics_of_joined_parts_become_lists_and_the_rest_must_agree() -> None:
    merged = merge_meta_info([{"n": 1, "metrics": {"loss": 1.0}}, {"n": 1, "metrics": [{"loss": 2.0}, {"loss": 3.0}]}])
    assert merged == {"n": 1, "metrics": {"loss": [1.0, 2.0, 3.0]}}
    with pytest.raises(DataProtoError, match="'n' is 1 in one part and 2"):
        merge_meta_info([{"n": 1}, {"n": 2}])


def test_equality_looks_into_objects() -> None:
    nan = float("nan")
    assert same(object_column([{"a": [1, nan]}]), object_column([{"a": [1, nan]}]))
    assert not same(object_column([{"a": [1, 2]}]), object_column([{"a": [1, 3]}]))
    assert not same(1, True)
    assert not same(torch.zeros(2), torch.zeros(3))
    assert not same(torch.tensor([nan]), torch.tensor([nan]))


def test_an_object_column_keeps_lists_of_equal_length_apart() -> None:
    column = object_column([[1, 2], [3, 4]])
    assert column.shape == (2,)
    assert column[1] == [3, 4]


def test_printing_lists_every_column() -> None:
    text = str(example())
    assert text.startswith("DataProto of 6 rows")
    assert "x  int64 [6, 2]" in text
    assert "uid  object [6]" in text
    assert "step" in text
