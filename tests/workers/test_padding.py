"""Response columns against verl's numbers; padding rows against verl's marks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kitlib.keys import TrajectoryKey
from kitlib.transfer_queue import KVBatchMeta, TransferQueue, jagged, list_of_dict_to_tensordict, padded
from kitlib.workers.errors import WorkerError
from kitlib.workers.padding import response_from_nested, response_to_nested, upsample_batch_to_divisible_size
from tests.golden.cases import Case, assert_close, cases


def lens_of(inputs: dict[str, Tensor]) -> tuple[list[int], list[int]]:
    return inputs["prompt_len"].tolist(), inputs["response_len"].tolist()


@pytest.mark.parametrize("case", cases("layout/"))
def test_response_columns_match_verl(case: Case) -> None:
    inputs = case.tensors()
    prompt_lens, response_lens = lens_of(inputs)
    mask = jagged([torch.ones(num) for num in response_lens])
    if case.function == "response_to_nested":
        assert_close(response_to_nested(inputs["tensor"], mask).values(), case.expected("values (flat)"), "values")
        return
    seq_lens = [p + r for p, r in zip(prompt_lens, response_lens, strict=True)]
    response = response_from_nested(jagged(list(inputs["tensor (flat)"].split(seq_lens))), mask)
    if case.function == "response_from_nested":
        assert_close(response.values(), case.expected("values (flat)"), "values")
    else:  # no_padding_2_padding: the same cut, padded
        assert_close(padded(response), case.expected("padded"), "padded")


@pytest.fixture
def queue() -> TransferQueue:
    tq = TransferQueue()
    rows = []
    for session in range(3):
        length = 2 + session
        rows.append(
            {
                "prompts": torch.tensor([5, 6]),
                "responses": torch.arange(length),
                "input_ids": torch.cat([torch.tensor([5, 6]), torch.arange(length)]),
                "position_ids": torch.arange(2 + length, dtype=torch.int32),
                "response_mask": torch.ones(length, dtype=torch.int64),
                "loss_mask": torch.ones(length, dtype=torch.int64),
                "advantages": torch.ones(length),
                "uid": "a",
                "session_id": session,
                "num_turns": 4,
                "extra_fields": {"turn_scores": [1.0]},
                "multi_modal_inputs": {"image": 1},
            }
        )
    tags = [
        {"status": "success", "global_steps": 7, "prompt_len": 2, "response_len": 2 + s, "seq_len": 4 + s}
        for s in range(3)
    ]
    tq.kv_batch_put([f"a_{s}_0" for s in range(3)], "train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    return tq


def handle(tq: TransferQueue) -> KVBatchMeta:
    listed = tq.kv_list("train")["train"]
    return KVBatchMeta(list(listed), list(listed.values()), "train", extra_info={"temperature": 0.5})


def test_padding_rows_carry_verls_marks(queue: TransferQueue) -> None:
    batch = upsample_batch_to_divisible_size(queue, handle(queue), 5, eos_token_id=9)
    assert len(batch) == 5
    assert batch.extra_info == {"temperature": 0.5}
    pads = [TrajectoryKey.parse(key) for key in batch.keys[3:]]
    assert [(pad.session_id, pad.index) for pad in pads] == [(0, 0), (1, 0)]
    assert pads[0].uid == pads[1].uid
    assert pads[0].uid.startswith("pad")
    assert len(pads[0].uid) == 35
    expected_tag = {
        "status": "success",
        "global_steps": 7,
        "is_padding": True,
        "prompt_len": 127,
        "response_len": 1,
        "seq_len": 128,
    }
    assert batch.tags[4] == expected_tag
    assert queue.kv_list("train")["train"][batch.keys[4]] == expected_tag

    row = queue.kv_batch_get([batch.keys[4]], "train")[0]
    assert row["prompts"].tolist() == [9] * 127
    assert row["responses"].tolist() == [9]
    assert row["input_ids"].tolist() == [9] * 128
    assert row["attention_mask"].tolist() == [1] * 128
    assert row["position_ids"].tolist() == list(range(128))
    assert row["position_ids"].dtype == torch.int32
    assert row["response_mask"].tolist() == row["loss_mask"].tolist() == [0]
    assert row["rm_scores"].tolist() == row["rollout_log_probs"].tolist() == [0.0]
    assert row["uid"] == pads[1].uid
    assert row["session_id"] == 1
    assert row["num_turns"] == 0
    assert row["multi_modal_inputs"] == {}
    assert row["extra_fields"] == {"turn_scores": [1.0]}
    assert row["advantages"].tolist() == [1.0, 1.0]  # not listed: as in the first row


def test_a_batch_that_divides_is_left_alone(queue: TransferQueue) -> None:
    before = queue.version
    batch = handle(queue)
    assert upsample_batch_to_divisible_size(queue, batch, 3, eos_token_id=9) is batch
    assert queue.version == before


def test_nothing_to_pad_from_is_named(queue: TransferQueue) -> None:
    with pytest.raises(WorkerError, match="cannot pad 0 rows"):
        upsample_batch_to_divisible_size(queue, KVBatchMeta([], [], "train"), 4, eos_token_id=9)
    batch = handle(queue)
    batch.partition_id = None
    with pytest.raises(WorkerError, match="names no partition"):
        upsample_batch_to_divisible_size(queue, batch, 4, eos_token_id=9)
