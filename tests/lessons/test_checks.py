"""Every check takes the right answer, and says of each planted wrong one which mistake it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kitlib.config import load_config
from kitlib.lessons import Answer, check_new_fields, check_read
from kitlib.transfer_queue import KVBatchMeta, TransferQueue, take_snapshot


def words(answer: Answer) -> str:
    return "\n".join(answer.says)


class TestNewFields:
    @pytest.fixture
    def check(self, tq: TransferQueue, batch: KVBatchMeta) -> Any:
        """The check around a stage that has written two fields on one row."""
        before = take_snapshot(tq)
        tq.kv_put("u0_0_0", "train", fields={"old_log_probs": torch.zeros(2), "log_probs": torch.zeros(4)})
        after = take_snapshot(tq)
        return lambda answer: check_new_fields(answer, before, after, load_config())

    @pytest.mark.parametrize("answer", [{"old_log_probs", "log_probs"}, ["log_probs", "old_log_probs"]])
    def test_right(self, check: Any, answer: Any) -> None:
        assert check(answer).ok is True

    def test_open(self, check: Any) -> None:
        assert check(...).ok is None
        assert "NOT ANSWERED YET" in check(...).text()

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ({"old_log_probs"}, "1 field still missing from your answer: 'value at t scores token t+1"),
            (set(), "2 fields still missing"),
            ({}, "2 fields still missing"),
            ({"old_log_probs", "log_probs", "rollout_log_probs"}, "rollout_log_probs was there before"),
            ({"old_log_probs", "log_probs", "advantages"}, "advantages is written by compute_advantage, not by this"),
            (
                {"old_log_probs", "log_probs", "ref_log_prob"},
                "ref_log_prob is written by compute_ref_log_prob, which this",
            ),
            ({"old_log_probs", "log_probs", "attention_mask"}, "attention_mask is written by no stage: only padding"),
            ({"old_log_prob", "log_probs"}, "old_log_prob is no field of the contract; did you mean old_log_probs"),
            ("log_probs", "the answer is a set of names"),
            (2, "the answer is a set of names"),
            ([1, 2], "the answer is a set of names"),
        ],
    )
    def test_wrong(self, check: Any, answer: Any, mistake: str) -> None:
        assert check(answer).ok is False
        assert mistake in words(check(answer))

    def test_the_hint_is_not_the_answer(self, check: Any) -> None:
        assert "log_probs" not in words(check({"old_log_probs"})).replace("old_log_probs", "")

    def test_nothing_is_right_when_nothing_has_appeared(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        same = take_snapshot(tq)
        assert check_new_fields(set(), same, same).ok is True
        assert check_new_fields({"advantages"}, same, same).ok is False


class TestRead:
    """Four keys exist, one row lacks rm_scores; a fifth key does not exist."""

    @pytest.fixture
    def check(self, tq: TransferQueue, batch: KVBatchMeta) -> Any:
        tq.kv_put("u3_0_0", "train", fields={"responses": torch.arange(2)})
        keys = ["u0_0_0", "u1_0_0", "u3_0_0", "u9_0_0"]
        return lambda num_rows, columns: check_read(num_rows, columns, tq, keys, "train", ["responses", "rm_scores"])

    def test_right(self, check: Any) -> None:
        assert check(3, {"responses"}).ok is True
        assert all(check(rows, [" responses"]).ok is True for rows in (3.0, np.int64(3), torch.tensor(3)))

    @pytest.mark.parametrize(("num_rows", "columns"), [(..., {"responses"}), (3, ...), (..., ...)])
    def test_open(self, check: Any, num_rows: Any, columns: Any) -> None:
        assert check(num_rows, columns).ok is None

    @pytest.mark.parametrize(
        ("num_rows", "columns", "mistake"),
        [
            (4, {"responses"}, "a key that does not exist gives no row and no error"),
            (2, {"responses"}, "count the keys that exist"),
            (5, {"responses"}, "only 4 keys are asked for"),
            (3, {"responses", "rm_scores"}, "rm_scores does not come back: a column is delivered only if every"),
            (3, {"responses", "uid"}, "uid was not asked for"),
            (3, set(), "1 column still missing"),
            ("3", {"responses"}, "num_rows is a whole number"),
            (True, {"responses"}, "num_rows is a whole number"),
            (3, "responses", "the answer is a set of names"),
        ],
    )
    def test_wrong(self, check: Any, num_rows: Any, columns: Any, mistake: str) -> None:
        assert check(num_rows, columns).ok is False
        assert mistake in words(check(num_rows, columns))

    def test_a_row_is_not_dropped_for_a_field_it_lacks(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        tq.kv_put("u3_0_0", "train", fields={"responses": torch.arange(2)})
        answer = check_read(1, {"responses"}, tq, ["u0_0_0", "u3_0_0"], "train", ["responses", "rm_scores"])
        assert "a key that exists always gives a row" in words(answer)
        assert check_read(2, {"responses"}, tq, ["u0_0_0", "u3_0_0"], "train", ["responses", "rm_scores"]).ok

    def test_without_selected_fields_every_common_field_comes_back(self, tq: TransferQueue, batch: KVBatchMeta) -> None:
        everything = {"uid", "responses", "response_mask", "rollout_log_probs", "rm_scores"}
        assert check_read(4, everything, tq, batch.keys, "train").ok is True
        assert check_read(4, everything - {"uid"}, tq, batch.keys, "train").ok is False
