"""What comes back as what, and the helpers for columns of ragged rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from kitlib.transfer_queue import (
    QueueTypeError,
    QueueValueError,
    jagged,
    lengths,
    list_of_dict_to_tensordict,
    padded,
)


def round_trip(tq: Any, column: object, keys: tuple[str, ...] = ("a", "b")) -> object:
    """Put one column and get it back; `.get` gives a column as it is, item access turns stacks into lists."""
    tq.kv_batch_put(list(keys), "p", TensorDict({"x": column}, batch_size=len(keys)))
    return tq.kv_batch_get(list(keys), "p").get("x")


def is_jagged(column: object) -> bool:
    return isinstance(column, torch.Tensor) and column.is_nested and column.layout == torch.jagged


@pytest.mark.parametrize(
    "column",
    [
        torch.arange(6).reshape(2, 3),
        jagged([torch.arange(3), torch.arange(3)]),
        jagged([torch.arange(3), torch.arange(5)]),
        jagged([torch.arange(0), torch.arange(2)]),
        jagged([torch.arange(0), torch.arange(0)]),
        torch.zeros(2, 3, 4, dtype=torch.bfloat16),
        jagged([torch.zeros(2, 4), torch.ones(3, 4)]),
        torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided),
    ],
)
def test_tensor_rows_come_back_jagged(tq: Any, column: torch.Tensor) -> None:
    got = round_trip(tq, column)
    assert is_jagged(got)
    assert isinstance(got, torch.Tensor)
    assert got.dtype == column.dtype
    for row, expected in zip(got.unbind(), column.unbind(), strict=True):
        assert torch.equal(row, expected)


def test_rows_of_three_dimensions_are_ragged_where_they_differ(tq: Any) -> None:
    equal = round_trip(tq, torch.zeros(2, 3, 4))
    assert (equal._ragged_idx, tuple(equal.values().shape)) == (1, (6, 4))  # type: ignore[attr-defined]
    differing = round_trip(tq, jagged_in_last(torch.zeros(3, 4), torch.zeros(3, 5)))
    assert (differing._ragged_idx, tuple(differing.values().shape)) == (2, (3, 9))  # type: ignore[attr-defined]


def jagged_in_last(*rows: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def test_what_a_get_builds_equals_what_torch_builds_from_the_rows(tq: Any) -> None:
    rows = [torch.arange(3), torch.arange(5), torch.arange(4)]
    whole = round_trip(tq, jagged(rows), ("a", "b", "c"))
    reference = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    assert torch.equal(whole.offsets(), reference.offsets())  # type: ignore[attr-defined]
    assert whole.offsets().dtype == reference.offsets().dtype  # type: ignore[attr-defined]
    assert (whole._get_min_seqlen(), whole._get_max_seqlen()) == (3, 5)  # type: ignore[attr-defined]
    dense = round_trip(tq, torch.arange(6).reshape(2, 3))
    assert (dense._get_min_seqlen(), dense._get_max_seqlen()) == (3, 3)  # type: ignore[attr-defined]


def test_one_scalar_a_row_comes_back_dense(tq: Any) -> None:
    got = round_trip(tq, torch.tensor([1.0, 2.0]))
    assert isinstance(got, torch.Tensor)
    assert not got.is_nested
    assert got.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["u", None], ["u", None]),
        ([{"a": (1, 2)}, {3: {4}}], [{"a": [1, 2]}, {3: [4]}]),
        ([(1, 2), [3]], [[1, 2], [3]]),
        ([np.float32(1.5), b"x"], [np.float32(1.5), b"x"]),
    ],
)
def test_objects_come_back_as_a_stack_with_tuples_and_sets_as_lists(tq: Any, values: list, expected: list) -> None:
    got = round_trip(tq, NonTensorStack(*values))
    assert isinstance(got, NonTensorStack)
    assert got.tolist() == expected


def test_arrays_stay_arrays(tq: Any) -> None:
    got = round_trip(tq, NonTensorStack(np.arange(2), np.arange(3)))
    assert isinstance(got, NonTensorStack)
    assert [array.tolist() for array in got.tolist()] == [[0, 1], [0, 1, 2]]


def test_rows_that_do_not_fit_together_degrade_step_by_step(tq: Any) -> None:
    def column(first: object, second: object) -> object:
        tq.kv_clear(["a", "b"], "p")
        tq.kv_put("a", "p", {"x": first})
        tq.kv_put("b", "p", {"x": second})
        return tq.kv_batch_get(["a", "b"], "p").get("x")

    two_dtypes = column(torch.ones(3), torch.ones(2, dtype=torch.int64))
    assert isinstance(two_dtypes, torch.Tensor)
    assert two_dtypes.layout == torch.strided
    two_ranks = column(torch.ones(3), torch.ones(3, 2))
    assert isinstance(two_ranks, NonTensorStack)
    with_none = column(torch.ones(3), None)
    assert isinstance(with_none, NonTensorStack)
    assert with_none.tolist()[1] is None


def test_a_graph_stays_outside(tq: Any) -> None:
    assert not round_trip(tq, torch.ones(2, 3, requires_grad=True) * 2).requires_grad  # type: ignore[attr-defined]


def test_list_of_dict_to_tensordict_picks_a_layout_for_each_field() -> None:
    rows = [
        {"same": torch.zeros(2), "ragged": torch.zeros(1), "object": "x", "mixed": torch.zeros(1)},
        {"same": torch.ones(2), "ragged": torch.zeros(3), "object": {}, "mixed": None},
    ]
    td = list_of_dict_to_tensordict(rows)
    assert td.batch_size == torch.Size([2])
    assert td["same"].shape == (2, 2)
    assert lengths(td["ragged"]).tolist() == [1, 3]
    assert isinstance(td.get("object"), NonTensorStack)
    assert isinstance(td.get("mixed"), NonTensorStack)


def test_list_of_dict_to_tensordict_names_what_does_not_fit() -> None:
    with pytest.raises(QueueValueError, match="at least one row"):
        list_of_dict_to_tensordict([])
    with pytest.raises(QueueValueError, match=r"row 1 .*\['b', 'c'\]"):
        list_of_dict_to_tensordict([{"a": 1, "b": 1}, {"a": 1, "c": 1}])
    with pytest.raises(QueueTypeError, match="'ids'.*shapes"):
        list_of_dict_to_tensordict([{"ids": torch.zeros(2)}, {"ids": torch.zeros(2, 2)}])


def test_padded_and_lengths() -> None:
    column = jagged([torch.tensor([1, 2, 3]), torch.tensor([4])])
    assert padded(column).tolist() == [[1, 2, 3], [4, 0, 0]]
    assert padded(column, 4, padding=9).tolist() == [[1, 2, 3, 9], [4, 9, 9, 9]]
    assert padded(torch.tensor([[1, 2]]), 3).tolist() == [[1, 2, 0]]
    assert lengths(column).tolist() == [3, 1]
    assert lengths(torch.zeros(2, 5)).tolist() == [5, 5]
    with pytest.raises(QueueValueError, match="longest row has 3"):
        padded(column, 2)
