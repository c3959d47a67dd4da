"""Bad input and crowds: a clear error or a clean result, nothing lost, nothing half-written beyond an empty key."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict

from kitlib.transfer_queue import QueueError, QueueTypeError, TransferQueue, jagged, take_snapshot

GARBAGE = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.none() | st.text(max_size=2) | st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=2) | st.integers(), st.none() | st.lists(st.integers(), max_size=2), max_size=2),
    st.sampled_from(
        [
            torch.ones(()),
            torch.ones(0),
            torch.full((2, 2), float("nan")),
            jagged([torch.ones(0), torch.ones(2)]),
            TensorDict({}, batch_size=[]),
            TensorDict({"x": torch.ones(2, 1)}, batch_size=2),
            TensorDict({"x": torch.ones(1, 1)}, batch_size=1),
            TensorDict({"x": NonTensorData("one for all", batch_size=[1])}, batch_size=1),
            TensorDict({"x": TensorDict({"y": torch.ones(1)}, batch_size=1)}, batch_size=1),
            np.arange(3),
            object(),
            threading.Lock(),
            (number for number in ()),
        ]
    ),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(verb=st.sampled_from(["kv_put", "kv_batch_put"]), key=GARBAGE, partition=GARBAGE, fields=GARBAGE, tag=GARBAGE)
def test_garbage_gives_a_clear_error_or_is_stored(verb: str, key: Any, partition: Any, fields: Any, tag: Any) -> None:
    tq = TransferQueue()
    tq.kv_put("good", "p", {"x": torch.ones(2)}, tag={"t": 1})
    try:
        getattr(tq, verb)(key, partition if isinstance(partition, str) else "p", fields, tag)
    except QueueError:
        listed = {key: tag for keys in tq.kv_list().values() for key, tag in keys.items()}
        assert all(tag in ({}, {"t": 1}) for tag in listed.values())
        assert take_snapshot(tq).partitions["p"].present.sum() == 1
    assert tq.kv_batch_get("good", "p")["x"].values().tolist() == [1.0, 1.0]
    assert tq.kv_list("p")["p"]["good"] == {"t": 1}


@settings(max_examples=200, deadline=None)
@given(verb=st.sampled_from(["kv_batch_get", "kv_clear", "kv_list"]), first=GARBAGE, second=GARBAGE)
def test_garbage_in_other_verbs(verb: str, first: Any, second: Any) -> None:
    tq = TransferQueue()
    tq.kv_put("good", "p", {"x": torch.ones(2)})
    arguments = (first,) if verb == "kv_list" else (first, second)
    with contextlib.suppress(QueueError):
        getattr(tq, verb)(*arguments)
    assert tq.kv_list("p") == {"p": {"good": {}}}


@pytest.mark.parametrize("odd", [threading.Lock(), (number for number in ())])
def test_what_cannot_be_copied_is_named(odd: Any) -> None:
    with pytest.raises(QueueTypeError, match=r"field 'o': a (lock|generator) cannot be copied"):
        TransferQueue().kv_put("a", "p", {"o": odd})
    with pytest.raises(QueueTypeError, match="cannot be copied"):
        TransferQueue().kv_put("a", "p", tag={"o": odd})


def test_odd_but_legal_values() -> None:
    tq = TransferQueue()
    huge = "k" * 100_000
    rows = TensorDict({"x": torch.full((1, 2), float("nan")), "e": torch.zeros(1, 0), "n": NonTensorStack(None)}, [1])
    tq.kv_batch_put([huge], "p", rows, [{"nan": float("nan")}])
    got = tq.kv_batch_get(huge, "p")
    assert got["x"].values().isnan().all()
    assert got["e"].unbind()[0].shape == (0,)
    assert list(got["n"]) == [None]


def test_a_crowd_puts_and_clears_and_nothing_is_lost() -> None:
    tq = TransferQueue(num_storage_units=4)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            mine = [f"k{number}_{row}_0" for row in range(3)]
            batch = TensorDict({"x": jagged([torch.full((row + 1,), number) for row in range(3)])}, batch_size=3)
            tq.kv_batch_put(mine, "p", batch, [{"n": number}] * 3)
            assert [row.tolist() for row in tq.kv_batch_get(mine, "p")["x"].unbind()] == [
                [number] * (row + 1) for row in range(3)
            ]
            tq.kv_clear(mine[:2], "p")
        except BaseException as error:  # noqa: BLE001 (reported by the main thread)
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert tq.kv_list("p") == {"p": tq.kv_list("p")["p"]}
    assert sorted(tq.kv_list("p")["p"]) == sorted(f"k{number}_2_0" for number in range(1000))
    assert take_snapshot(tq).partitions["p"].present.sum() == 1000
    data = tq.kv_batch_get([f"k{number}_2_0" for number in range(1000)], "p")["x"]
    assert data.values().tolist() == [number for number in range(1000) for _ in range(3)]
