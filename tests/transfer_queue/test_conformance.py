"""Random sequences of verbs: the in-process queue against a model of a few lines, and against the package on Ray.

Compared after every step: the result or the kind of error, and the whole listing. One difference is left out on
purpose: if a put changes the dtype of a field, the package stores it but loses sight of the fields after it in the
same put.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

from kitlib.transfer_queue import TransferQueue, jagged

from .conftest import OwnPartitions

Step = tuple[str, dict[str, Any]]

KEYS, PARTITIONS = st.sampled_from("abcd"), st.sampled_from("pq")
TAGS = st.dictionaries(st.sampled_from(["status", "step"]), st.integers(0, 3), max_size=2)
VALUES = {
    "x": st.lists(st.integers(0, 9), max_size=3),  # a row of a ragged column
    "y": st.integers(0, 9),  # a scalar tensor
    "o": st.sampled_from(["text", None, {"k": [1]}, 7]),  # an object
}


@st.composite
def puts(draw: st.DrawFn) -> Step:
    keys = draw(st.lists(KEYS, min_size=1, max_size=4, unique=draw(st.booleans())))
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=3, unique=True))
    columns = {name: [draw(VALUES[name]) for _ in keys] for name in names}
    num_tags = len(keys) + draw(st.sampled_from([0] * 9 + [1]))
    tags = draw(st.none() | st.lists(TAGS, min_size=num_tags, max_size=num_tags))
    return "put", {"keys": keys, "partition": draw(PARTITIONS), "columns": columns or None, "tags": tags}


@st.composite
def gets(draw: st.DrawFn) -> Step:
    keys = draw(st.lists(KEYS, max_size=4))
    select = draw(st.none() | st.sampled_from(["x", "nope"]) | st.lists(st.sampled_from("xyo"), max_size=3))
    return "get", {"keys": keys, "partition": draw(PARTITIONS), "select": select}


@st.composite
def clears(draw: st.DrawFn) -> Step:
    return "clear", {"keys": draw(st.lists(KEYS, max_size=3)), "partition": draw(PARTITIONS)}


def steps(max_size: int) -> st.SearchStrategy[list[Step]]:
    return st.lists(puts() | puts() | gets() | clears(), min_size=1, max_size=max_size)


@dataclass
class Model:
    """What the verbs do, in terms of dictionaries: partition -> key -> (tag, row)."""

    partitions: dict[str, dict[str, tuple[dict, dict]]] = field(default_factory=dict)

    def put(self, keys: list[str], partition: str, columns: dict | None, tags: list | None) -> Any:
        if columns is None and tags is None:
            raise ValueError
        rows = self.partitions.setdefault(partition, {})
        for key in keys:
            rows.setdefault(key, ({}, {}))
        if tags is not None:
            if len(tags) != len(keys):
                raise ValueError
            merged = [{**rows[key][0], **tag} for key, tag in zip(keys, tags, strict=True)]
            rows.update({key: (tag, rows[key][1]) for key, tag in zip(keys, merged, strict=True)})
        for name, values in (columns or {}).items():
            for key, value in zip(keys, values, strict=True):
                rows[key][1][name] = value
        if len(set(keys)) < len(keys):
            raise ValueError
        return [rows[key][0] for key in keys], sorted(set.intersection(*(set(rows[key][1]) for key in keys)))

    def get(self, keys: list[str], partition: str, select: Any) -> Any:
        if not keys:
            raise ValueError
        rows = [self.partitions.get(partition, {})[key][1] for key in keys if key in self.partitions.get(partition, {})]
        common = set.intersection(*(set(row) for row in rows)) if rows else set()
        if not common:
            raise ValueError
        wanted = common if select is None else common & set([select] if isinstance(select, str) else select)
        return len(rows) if wanted else 0, {name: [row[name] for row in rows] for name in sorted(wanted)}

    def clear(self, keys: list[str], partition: str) -> None:
        if not keys:
            raise ValueError
        for key in keys:
            self.partitions.get(partition, {}).pop(key, None)

    def listing(self) -> dict:
        return {name: {key: tag for key, (tag, _) in rows.items()} for name, rows in self.partitions.items()}


class Driver:
    """The same steps on a real queue, results in the model's terms."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def put(self, keys: list[str], partition: str, columns: dict | None, tags: list | None) -> Any:
        make: dict[str, Callable[[list], Any]] = {
            "x": lambda rows: jagged([torch.tensor(row, dtype=torch.int64) for row in rows]),
            "y": torch.tensor,
            "o": lambda rows: NonTensorStack(*rows),
        }
        fields = columns and TensorDict({n: make[n](v) for n, v in columns.items()}, batch_size=len(keys))
        meta = self.queue.kv_batch_put(keys, partition, fields, tags)
        return meta.tags, meta.fields

    def get(self, keys: list[str], partition: str, select: Any) -> Any:
        data = self.queue.kv_batch_get(keys, partition, select)
        columns = {name: data.get(name) for name in data.keys()}
        return len(data), {name: self._rows(column) for name, column in columns.items()}

    def _rows(self, column: Any) -> list:
        return column.tolist() if not getattr(column, "is_nested", False) else [r.tolist() for r in column.unbind()]

    def clear(self, keys: list[str], partition: str) -> None:
        self.queue.kv_clear(keys, partition)

    def listing(self) -> dict:
        return self.queue.kv_list()


def outcome(system: Any, step: Step) -> Any:
    """The result of a step, or which builtin error it raised, and the listing afterwards with the order of the keys."""
    verb, arguments = step
    try:
        result = getattr(system, verb)(**arguments)
    except ValueError:
        result = ValueError
    except TypeError:
        result = TypeError
    return result, {name: list(keys.items()) for name, keys in system.listing().items()}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps(12))
def test_the_in_process_queue_does_what_the_model_does(sequence: list[Step]) -> None:
    model, queue = Model(), Driver(TransferQueue(num_storage_units=2))
    for step in sequence:
        assert outcome(queue, step) == outcome(model, step), step


GHOST = [
    ("put", {"keys": ["a"], "partition": "p", "columns": {"x": [[1]]}, "tags": [{"step": 1}]}),
    ("clear", {"keys": ["a"], "partition": "p"}),
    ("put", {"keys": ["a"], "partition": "p", "columns": None, "tags": [{"status": 2}]}),
]


@pytest.mark.ray
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@example(GHOST)
@given(steps(10))
def test_the_in_process_queue_does_what_the_package_does(package_queue: Any, sequence: list[Step]) -> None:
    package, queue = Driver(OwnPartitions(package_queue)), Driver(TransferQueue())
    for step in sequence:
        assert outcome(queue, step) == outcome(package, step), step


def test_snapshots_of_all_backends_show_the_same_presence(tq: Any) -> None:
    """Same keys, tags, fields and presence; dtype and shape of tensor rows."""
    rows = TensorDict({"x": jagged([torch.arange(3), torch.arange(5)]), "o": NonTensorStack("u", {})}, batch_size=2)
    tq.kv_batch_put(["a", "b"], "p", rows, [{"t": 1}, {}])
    tq.kv_put("b", "p", {"z": torch.zeros(2, 2)})
    tq.kv_put("marker", "p", tag={"status": "pending"})
    shown = tq.snapshot("p")
    assert shown.keys == ("a", "b", "marker")
    assert shown.tags == ({"t": 1}, {}, {"status": "pending"})
    assert sorted(shown.fields) == ["o", "x", "z"]
    assert [shown.has("b", name) for name in "oxz"] == [True] * 3
    assert shown.fields_of("marker") == ()
    assert [shown.cell(key, "x")[:3] for key in "ab"] == [("int64", (3,), "row"), ("int64", (5,), "row")]
    assert shown.cell("b", "z")[:3] == ("float32", (2, 2), "row")
    assert shown.cell("a", "z") is None
    assert shown.cell("a", "o").layout == "object"
