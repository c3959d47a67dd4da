"""StrictQueue: what the store would take and should not."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from kitlib.contract import FIELDS
from kitlib.transfer_queue import MissingFieldsError, StrictQueue, StrictWriteError, TransferQueue, jagged
from kitlib.transfer_queue.strict import is_slip


def fields(*lengths: int, dtype: torch.dtype = torch.int64) -> TensorDict:
    return TensorDict({"x": jagged([torch.zeros(n, dtype=dtype) for n in lengths])}, batch_size=len(lengths))


@pytest.fixture
def tq() -> StrictQueue:
    queue = StrictQueue(TransferQueue())
    queue.kv_batch_put(["u1_0_0", "u1_1_0"], "train", fields(2, 3), [{"t": 1}, {}])
    queue.kv_put("u1", "train", tag={"is_prompt": True})
    return queue


@pytest.mark.parametrize(
    ("keys", "columns", "words"),
    [
        (["u2_0_0", "u2_0_0"], fields(1, 1), "key 'u2_0_0' is given twice"),
        (["my_uid"], fields(1), "'my_uid' is neither a prompt uid .* group 'my'"),
        (["my_uid_0_0"], fields(1), "'my_uid_0_0' is neither"),
        (["u1_0_0"], fields(4), r"x of u1_0_0: int64 \[4\] over int64 \[2\]"),
        (["u1_1_0"], fields(3, dtype=torch.float32), r"x of u1_1_0: float32 \[3\] over int64 \[3\]"),
        (["u1_1_0"], TensorDict({"x": torch.zeros(1)}, batch_size=1), r"int64|float32 \[\] over int64 \[3\]"),
        (["u1_1_0"], TensorDict({"x": NonTensorStack("text")}, batch_size=1), r"str over int64 \[3\]"),
    ],
)
def test_refuses_and_stores_nothing(tq: StrictQueue, keys: list[str], columns: TensorDict, words: str) -> None:
    before, version = tq.kv_list(), tq.version
    with pytest.raises(StrictWriteError, match=words):
        tq.kv_batch_put(keys, "train", columns, [{"new": 1}] * len(keys))
    assert (tq.kv_list(), tq.version) == (before, version)


def test_lists_every_problem_at_once(tq: StrictQueue) -> None:
    with pytest.raises(StrictWriteError) as caught:
        tq.kv_batch_put(["u1_0_0", "a_b", "a_b"], "train", fields(9, 1, 1), [{}])
    for words in ("'a_b' is given twice", "neither", "1 tags for 3 keys", "int64 [9] over int64 [2]"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("old_log_prob", True),
        ("old_log_probss", True),
        ("old_lgo_probs", True),
        ("odl_log_probs", True),
        ("OldLogProbs", True),
        ("old_1og_probs", False),  # a digit: x1 and x2 are two fields
        ("ref_log_probs", False),
        ("log_probs", False),
    ],
)
def test_a_new_field_one_slip_from_another_is_refused_with_the_name_that_was_meant(name: str, is_refused: bool) -> None:
    tq = StrictQueue(TransferQueue())
    tq.kv_put("u1_0_0", "train", {"old_log_probs": torch.ones(3), "x": 1})
    tq.kv_put("u1_1_0", "train", {"old_log_probs": torch.ones(3), "y": 1})
    if is_refused:
        with pytest.raises(StrictWriteError, match=rf"'{name}' is new .* name of 'old_log_probs'"):
            tq.kv_put("u1_1_0", "train", {name: torch.ones(3)})
        tq.kv_put("u2_0_0", "val", {name: torch.ones(3)})  # other partition, other names
    else:
        tq.kv_put("u1_1_0", "train", {name: torch.ones(3)})


def test_no_two_fields_of_the_contract_are_a_slip_apart() -> None:
    assert [(a, b) for a, b in itertools.combinations(FIELDS, 2) if is_slip(a, b)] == []


def test_lets_pass_what_is_in_order(tq: StrictQueue) -> None:
    tq.kv_batch_put(["u1_0_0", "u1_1_0", "u1_2_0"], "train", fields(2, 3, 9))
    tq.kv_put("u1_0_0", "train", {"x": torch.ones(2, dtype=torch.int64), "o": "text"})
    tq.kv_put("u1_0_0", "train", {"o": {"another": "type"}})
    asyncio.run(tq.async_kv_put("u9", "val", tag={"is_prompt": True}))
    assert tq.kv_list("val") == {"val": {"u9": {"is_prompt": True}}}


def test_gets_are_strict_and_the_rest_is_the_queues_own(tq: StrictQueue) -> None:
    with pytest.raises(MissingFieldsError, match="x: 1 of 2 rows lack it: u1"):
        tq.kv_batch_get(["u1_0_0", "u1"], "train", ["x"])
    with pytest.raises(MissingFieldsError, match="nope"):
        asyncio.run(tq.async_kv_batch_get(["u1_0_0", "nope_0_0"], "train"))
    assert len(tq.kv_batch_get(["u1_0_0", "u1_1_0"], "train")) == 2
    meta = tq.kv_put("u1_0_0", "train", {"y": torch.ones(1)})
    assert sorted(tq.kv_batch_get_by_meta(meta).keys()) == ["x", "y"]
    tq.kv_clear(["u1_0_0", "u1_1_0", "u1"], "train")
    assert tq.snapshot().partitions["train"].keys == ()
