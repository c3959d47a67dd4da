"""Columns and constants of a DataProto: make them, compare them, merge them.

verl 0.9.1: protocol.py, union_tensor_dict, union_numpy_dict and _deep_equal; utils/py_functional.py, union_two_dict and
list_of_dict_to_dict_of_list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from kitlib.trainer.v0.errors import DataProtoError


def object_column(values: Sequence[Any]) -> np.ndarray:
    """A numpy array [num_rows] of objects; `np.array(lists, dtype=object)` makes a matrix of equally long lists."""
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def same(one: Any, other: Any) -> bool:
    """Equal in value, inside lists and dictionaries too. NaN equals NaN, except in tensors (as in verl)."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return (
            isinstance(one, Tensor)
            and isinstance(other, Tensor)
            and one.shape == other.shape
            and bool(one.equal(other))
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and all(same(a, b) for a, b in zip(one.flat, other.flat, strict=True))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other) or bool(one != one and other != other)  # the second: NaN


def merge_meta_info(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """meta_info of joined parts: equal values once, another value is a DataProtoError.

    `metrics`, a dictionary or a list of them in each part, becomes one dictionary of lists.
    """
    merged: dict[str, Any] = {}
    metrics: list[Mapping[str, Any]] = []
    for part in parts:
        for name, value in part.items():
            if name == "metrics":
                metrics += value if isinstance(value, list) else [value]
            elif name in merged and not same(merged[name], value):
                raise DataProtoError(f"meta_info {name!r} is {merged[name]!r} in one part and {value!r} in another")
            else:
                merged[name] = value
    if metrics:
        merged["metrics"] = {name: [one[name] for one in metrics] for name in metrics[0]}
    return merged
