"""Metrics of several updates joined into one, as verl joins them."""

from __future__ import annotations

import pytest

from kitlib.trainer.aggregate import aggregate
from tests.golden.cases import Case, cases


@pytest.mark.parametrize("case", cases("metrics/aggregator"))
def test_the_aggregate_is_verls(case: Case) -> None:
    updates = [(metrics, num_rows) for metrics, num_rows in case.args["steps"]]
    assert aggregate(updates) == pytest.approx(case.metrics)


def test_one_update_comes_back_as_it_is() -> None:
    assert aggregate([({"actor/lr": 1.0, "_counts": {1.0: 2}}, 8)]) == {"actor/lr": 1.0, "_counts": {1.0: 2}}


def test_counts_by_value_are_added_and_a_missing_metric_does_not_weigh() -> None:
    joined = aggregate([({"_counts": {0.0: 1}, "critic/score/mean": 1.0}, 2), ({"_counts": {0.0: 2, 1.0: 1}}, 6)])
    assert joined == {"_counts": {0.0: 3, 1.0: 1}, "critic/score/mean": 1.0}


def test_without_rows_the_mean_is_plain() -> None:
    assert aggregate([({"a": 1.0}, 0), ({"a": 3.0}, 0)]) == {"a": 2.0}
