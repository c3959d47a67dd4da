"""Row to rank: the same slices and micro-batches as the workers make."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kitlib.inspector import Cut, UnevenBatchError, View, row_to_rank
from kitlib.inspector.cuts import Row, micro_batches
from kitlib.transfer_queue import KVBatchMeta
from kitlib.workers.balance import calculate_workload
from kitlib.workers.rows import micro_batch_indices
from tests.inspector.reading import assert_same_facts

LENS = [31, 20, 25, 44, 20, 31, 28, 22]


def batch(lens: list[int], num_pads: int = 0) -> KVBatchMeta:
    tags: list[dict[str, Any]] = [{"seq_len": n} for n in lens] + [{"seq_len": 128, "is_padding": True}] * num_pads
    keys = [f"u{i}_0_0" for i in range(len(lens))] + [f"pad_{i}_0" for i in range(num_pads)]
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train")


def lines(view: View, number: int) -> list[list[str]]:
    return [[str(one) for one in row] for row in view.model.tables[number].rows]


@pytest.mark.parametrize("limits", [(None, None), (3, None), (None, 90)])
def test_micro_batches_are_the_workers(limits: tuple[int | None, int | None]) -> None:
    size, tokens = limits
    rows = [Row(f"u{i}_0_0", length, False) for i, length in enumerate(LENS)]
    mine = [[row.key for row in micro.rows] for micro in micro_batches(rows, Cut(1, None, size, tokens))]
    theirs = micro_batch_indices(torch.tensor(LENS), size, tokens)
    assert mine == [[f"u{int(i)}_0_0" for i in piece] for piece in theirs]


def test_load_is_the_one_that_balancing_makes_equal() -> None:
    assert [Row("", n, False).load for n in LENS] == calculate_workload(LENS).tolist()


def test_rank_takes_its_slice_and_cuts_it_into_mini_batches() -> None:
    view = row_to_rank(batch(LENS), Cut(dp_size=2, mini_batch_size=4, micro_batch_size=1))
    assert "8 rows over 2 ranks: 101 to 120 tokens a rank (16% apart)" in view.headline
    assert "2 mini-batches of 4 rows  8 micro-batches" in view.text(200)
    assert [line[:4] for line in lines(view, 0)] == [["0", "4", "-", "120"], ["1", "4", "-", "101"]]
    assert [line[:3] + line[-1:] for line in lines(view, 1)][:3] == [
        ["0", "0", "0", "u0_0_0"],
        ["0", "0", "1", "u1_0_0"],
        ["0", "1", "0", "u3_0_0"],
    ]
    assert_same_facts(view)


def test_padding_is_counted_in_rows_and_in_tokens() -> None:
    view = row_to_rank(batch(LENS, num_pads=2), Cut(dp_size=1))
    assert "2 padding rows" in view.text(200)
    (line,) = lines(view, 1)
    assert line[3:7] == ["10", "477", "128", "63%"] and line[7].endswith("(2 padding)")


def test_numbers_of_a_config() -> None:
    actor = {"ppo_mini_batch_size": 2, "ppo_micro_batch_size_per_gpu": 3, "use_dynamic_bsz": False}
    config = {"actor_rollout_ref": {"actor": actor, "rollout": {"n": 4}}}
    assert Cut.of(config, 2) == Cut(2, 8, 3, None)
    actor |= {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 512}
    assert Cut.of(config, 2) == Cut(2, 8, None, 512)


def test_one_key_is_found() -> None:
    view = row_to_rank(batch(LENS), Cut(2, None, 2), key="u5_*")
    assert [line[:3] + line[-1:] for line in lines(view, 1)] == [["1", "0", "0", "u5_0_0"]]
    assert "showing 1 of 4 micro-batches because of the filter key=u5_*" in view.text(200)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (Cut(dp_size=3), "8 rows do not divide by 3 ranks: balance_batch adds padding rows"),
        (Cut(dp_size=1, mini_batch_size=3), "do not make whole mini-batches of 3 rows"),
        (Cut(max_token_len=40), "u3_0_0 has 44 tokens, a micro-batch takes 40"),
    ],
)
def test_a_batch_that_does_not_divide_names_the_call_that_mends_it(cut: Cut, message: str) -> None:
    with pytest.raises(UnevenBatchError, match=message):
        row_to_rank(batch(LENS), cut)


def test_a_row_without_its_length_is_named() -> None:
    handle = KVBatchMeta(keys=["u_0_0"], tags=[{"status": "success"}], partition_id="train")
    with pytest.raises(UnevenBatchError, match="u_0_0 has no tag seq_len"):
        row_to_rank(handle)
