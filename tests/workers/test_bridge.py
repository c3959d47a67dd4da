"""The queue bridge: what it fetches, what it puts back, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from kitlib.transfer_queue import KVBatchMeta, MissingFieldsError, TransferQueue, jagged
from kitlib.workers.bridge import call_by_meta, fetches, setting
from kitlib.workers.errors import WorkerError
from kitlib.workers.worker_group import LocalWorkerGroup
from tests.workers.conftest import make_batch

KEYS = ["a_0_0", "a_1_0", "b_0_0"]


@pytest.fixture
def tq() -> TransferQueue:
    queue = TransferQueue()
    columns = {"x": jagged([torch.arange(2.0), torch.arange(3.0), torch.arange(1.0)]), "secret": torch.zeros(3, 1)}
    queue.kv_batch_put(KEYS, "train", fields=TensorDict(columns, batch_size=[3]), tags=[{"n": i} for i in range(3)])
    return queue


def handle(keys: list[str], **extra_info: Any) -> KVBatchMeta:
    return KVBatchMeta(list(keys), [{} for _ in keys], "train", extra_info=extra_info)


@fetches("x", optional=("y",))
def double(data: TensorDict) -> TensorDict:
    assert sorted(name for name in data.keys() if name != "by") == ["x"]
    columns = {"doubled": jagged([row * setting(data, "by") for row in data["x"].unbind()])}
    return TensorDict({**columns, "metrics": NonTensorData({"rows": len(data)})}, batch_size=[len(data)])


def test_tensors_go_to_the_queue_and_the_rest_into_extra_info(tq: TransferQueue) -> None:
    meta = call_by_meta(tq, double, handle(["b_0_0", "a_1_0"], by=2))
    assert isinstance(meta, KVBatchMeta)
    assert meta.keys == ["b_0_0", "a_1_0"]
    assert meta.extra_info == {"by": 2, "metrics": {"rows": 2}}
    stored = tq.kv_batch_get(["a_1_0", "b_0_0"], "train", ["doubled"])["doubled"]
    assert [row.tolist() for row in stored.unbind()] == [[0.0, 2.0, 4.0], [0.0]]
    assert tq.kv_list("train")["train"]["a_1_0"] == {"n": 1}  # tags are not touched


def test_a_dict_is_returned_as_it_is(tq: TransferQueue) -> None:
    before = tq.version
    assert call_by_meta(tq, fetches("x")(lambda data: {"num": len(data)}), handle(KEYS)) == {"num": 3}
    assert tq.version == before


def test_optional_fields_come_if_every_row_has_them(tq: TransferQueue) -> None:
    seen = fetches("x", optional=("y",))(lambda data: {"has_y": "y" in data.keys()})
    tq.kv_batch_put(KEYS[:2], "train", fields=TensorDict({"y": torch.ones(2, 1)}, batch_size=[2]))
    assert call_by_meta(tq, seen, handle(KEYS)) == {"has_y": False}
    assert call_by_meta(tq, seen, handle(KEYS[:2])) == {"has_y": True}


def test_what_the_store_would_drop_silently_is_an_error(tq: TransferQueue) -> None:
    tq.kv_batch_put(KEYS[:2], "train", fields=TensorDict({"z": torch.ones(2, 1)}, batch_size=[2]))
    with pytest.raises(MissingFieldsError, match="b_0_0"):
        call_by_meta(tq, fetches("x", "z")(lambda data: {}), handle(KEYS))
    with pytest.raises(MissingFieldsError, match="gone_0_0"):
        call_by_meta(tq, fetches("x")(lambda data: {}), handle([*KEYS, "gone_0_0"]))


def test_missing_setting_is_named(tq: TransferQueue) -> None:
    with pytest.raises(WorkerError, match="needs the setting 'by'"):
        call_by_meta(tq, double, handle(KEYS))


def test_worker_group_end_to_end(make_worker: Any) -> None:
    data, tq = make_batch(num_rows=4), TransferQueue()
    keys = [f"u_{i}_0" for i in range(4)]
    tq.kv_batch_put(keys, "train", fields=data, tags=[{} for _ in keys])
    group = LocalWorkerGroup(make_worker(), tq)
    batch = handle(keys, temperature=1.0, calculate_entropy=True)
    assert group.dp_size == 1
    group.compute_log_prob(batch)
    stored = tq.kv_batch_get(keys, "train", ["log_probs", "entropy", "input_ids"])
    assert stored["log_probs"].offsets().tolist() == stored["input_ids"].offsets().tolist()
    assert (stored["entropy"].values() >= 0).all()
    settings = {
        "mini_batch_size": 4,
        "global_batch_size": 4,
        "epochs": 1,
        "seed": 1,
        "dataloader_kwargs": {"shuffle": False},
    }
    batch.extra_info |= settings
    assert group.update_actor(batch)["actor/grad_norm"] > 0
