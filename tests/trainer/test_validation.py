"""Validation metrics: which name gets which number."""

from __future__ import annotations

import pytest

from kitlib.trainer.validation import ValidationRows, final_rows, validation_metrics


def rows(infos: list[dict], uids: list[str], expected: int = 1) -> ValidationRows:
    sources = ["s"] * len(uids)
    return ValidationRows(sources, uids, [2] * len(uids), infos, {("s", uid): expected for uid in uids})


def test_reward_is_the_core_metric_without_acc() -> None:
    metrics = validation_metrics(rows([{"reward": 1.0}, {"reward": 0.0}], ["a", "b"]))
    assert metrics["val-core/s/reward/mean@1"] == 0.5
    assert metrics["val-aux/num_turns/mean"] == 2.0


def test_acc_takes_the_core_place_and_a_lost_session_counts_as_wrong() -> None:
    infos = [{"reward": 2.0, "acc": 1.0}, {"reward": 2.0, "acc": 1.0}]
    metrics = validation_metrics(rows(infos, ["a", "b"], expected=2))
    assert metrics["val-core/s/acc/mean@2"] == 0.5
    assert metrics["val-aux/s/acc_success_only/mean@1"] == 1.0
    assert metrics["val-aux/s/reward/mean@1"] == 2.0


def test_several_sessions_give_best_worst_and_majority() -> None:
    infos = [{"reward": value, "pred": pred} for value, pred in ((1.0, "7"), (1.0, "7"), (0.0, "8"), (0.0, "9"))]
    metrics = validation_metrics(rows(infos, ["a"] * 4, expected=4))
    assert metrics["val-core/s/reward/mean@4"] == 0.5
    assert 0.85 < metrics["val-core/s/reward/best@4/mean"] <= 1.0
    assert metrics["val-aux/s/reward/worst@4/mean"] == pytest.approx(
        1 - metrics["val-core/s/reward/best@4/mean"], abs=0.1
    )
    assert metrics["val-core/s/reward/maj@4/mean"] > 0.5
    assert "val-aux/s/reward/best@2/mean" in metrics


def test_only_the_last_output_of_a_session_is_kept() -> None:
    assert final_rows(["a_0_0", "a_0_1", "b_0_0", "a_1_1", "a_1_0"]) == [1, 2, 3]


def test_what_only_some_sessions_report_is_averaged_over_those() -> None:
    infos = [
        {"reward": 1.0, "style": 1.0},
        {"reward": 0.0, "style": "none", "pred": "7"},
        {"reward": 0.0},
        {"note": "x"},
    ]
    metrics = validation_metrics(rows([{"reward": 0.0, **info} for info in infos], ["a"] * 4, expected=4))
    assert metrics["val-core/s/reward/mean@4"] == 0.25
    assert metrics["val-aux/s/style/mean@1"] == 1.0
    assert not any("note" in name or "pred" in name or "maj" in name for name in metrics)
