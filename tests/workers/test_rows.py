"""Padded rows: which positions are scored, how they are cut into micro-batches."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from kitlib.transfer_queue import jagged
from kitlib.workers.errors import WorkerError
from kitlib.workers.rows import Rows, micro_batch_indices, split_to

CPU = torch.device("cpu")


def two_rows() -> TensorDict:
    ids = [torch.arange(10, 15), torch.arange(20, 23)]
    columns = {
        "input_ids": ids,
        "position_ids": [torch.arange(5), torch.arange(3)],
        "prompts": [ids[0][:2], ids[1][:1]],
        "responses": [ids[0][2:], ids[1][1:]],
        "advantages": [torch.ones(3), torch.ones(2)],
    }
    return TensorDict({name: jagged(column) for name, column in columns.items()}, batch_size=[2])


def test_positions_point_at_the_token_before() -> None:
    rows = Rows.from_tensordict(two_rows(), ["advantages"], CPU)
    row, position = rows.positions(rows.response_grid())
    input_ids = rows.sequence["input_ids"]
    assert input_ids[row, position].tolist() == [11, 12, 13, 20, 21]
    assert input_ids[row, position + 1].tolist() == [12, 13, 14, 21, 22]


def test_position_ids_count_on_through_the_padding() -> None:
    rows = Rows.from_tensordict(two_rows(), (), CPU)
    assert rows.sequence["position_ids"].tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_taken_rows_are_cut_to_their_own_length() -> None:
    rows = Rows.from_tensordict(two_rows(), ["advantages"], CPU).take(torch.tensor([1]))
    assert rows.sequence["input_ids"].tolist() == [[20, 21, 22]]
    assert rows.response["advantages"].shape == (1, 2)


def test_bad_rows_are_named() -> None:
    data = two_rows()
    with pytest.raises(WorkerError, match="the batch lacks old_log_probs; it has .*input_ids"):
        Rows.from_tensordict(data, ["old_log_probs"], CPU)
    with pytest.raises(WorkerError, match=r"advantages, row 0: \[4\] tokens, but prompts and responses make it \[3\]"):
        Rows.from_tensordict(data.set("advantages", jagged([torch.ones(4), torch.ones(2)])), ["advantages"], CPU)
    with pytest.raises(WorkerError, match="row 1 has an empty prompt"):
        Rows.from_tensordict(data.set("prompts", jagged([torch.arange(2), torch.arange(0)])), (), CPU)


def test_micro_batches_hold_every_row_once_longest_first() -> None:
    seq_lens = torch.tensor([5, 50, 20, 40, 30])
    by_rows = micro_batch_indices(seq_lens, micro_batch_size=2)
    assert [index.tolist() for index in by_rows] == [[1, 3], [4, 2], [0]]
    by_tokens = micro_batch_indices(seq_lens, max_token_len=100)
    assert [index.tolist() for index in by_tokens] == [[1, 3], [4, 2, 0]]
    assert [index.tolist() for index in micro_batch_indices(seq_lens)] == [[1, 3, 4, 2, 0]]
    with pytest.raises(WorkerError, match="a row of 50 tokens does not fit into a micro-batch of 49"):
        micro_batch_indices(seq_lens, max_token_len=49)


def test_ranks_agree_on_the_number_of_micro_batches() -> None:
    pieces = split_to([torch.arange(5), torch.arange(5, 7)], 4)
    assert sorted(torch.cat(pieces).tolist()) == list(range(7))
    assert len(pieces) == 4
    with pytest.raises(WorkerError, match="1 rows cannot make 2 micro-batches"):
        split_to([torch.arange(1)], 2)
