"""Balanced partitions: the same as verl's, and good."""

from __future__ import annotations

import pytest
import torch

from kitlib.workers.balance import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance
from kitlib.workers.errors import WorkerError
from tests.golden.cases import Case, cases


@pytest.mark.parametrize("case", cases("balance/"))
def test_partitions_match_verl(case: Case) -> None:
    workload = calculate_workload(case.tensors()["seq_len"])
    assert torch.equal(workload, case.expected("workload"))
    partitions = get_seqlen_balanced_partitions(workload, case.args["k_partitions"], equal_size=True)
    assert partitions == case.args["partitions"]


@pytest.mark.parametrize("equal_size", [True, False])
def test_every_row_once_and_better_than_slices(equal_size: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    seq_lens = torch.randint(10, 2000, (64,), generator=generator).sort().values
    partitions = get_seqlen_balanced_partitions(calculate_workload(seq_lens), 4, equal_size)
    assert sorted(row for part in partitions for row in part) == list(range(64))
    assert not equal_size or {len(part) for part in partitions} == {16}
    metrics = log_seqlen_unbalance(seq_lens.tolist(), partitions, "global_seqlen")
    assert (
        metrics["global_seqlen/balanced_max"] - metrics["global_seqlen/balanced_min"]
        < 0.02 * metrics["global_seqlen/mean"]
    )
    assert metrics["global_seqlen/minmax_diff"] > metrics["global_seqlen/mean"]


def test_metrics_by_hand() -> None:
    metrics = log_seqlen_unbalance([1, 2, 3, 4], [[0, 3], [1, 2]], "g")
    assert metrics == {
        "g/min": 3,
        "g/max": 7,
        "g/minmax_diff": 4,
        "g/balanced_min": 5,
        "g/balanced_max": 5,
        "g/mean": 5.0,
    }


def test_what_cannot_be_split_is_named() -> None:
    with pytest.raises(WorkerError, match="1 rows cannot be split over 2 ranks"):
        get_seqlen_balanced_partitions([5], 2, equal_size=False)
    with pytest.raises(WorkerError, match="3 rows do not divide by 2 ranks"):
        get_seqlen_balanced_partitions([5, 6, 7], 2, equal_size=True)
