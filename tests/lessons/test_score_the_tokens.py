"""Lesson 07: every check takes the right answer and names each planted mistake; a shifted row is found and mended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.config import load_config
from kitlib.lessons import Fault, FaultError, load_fixture
from kitlib.lessons.answers import Answer
from kitlib.lessons.score_the_tokens import (
    Agreement,
    agreement,
    check_log_prob,
    check_positions,
    check_ranks,
    log_probs_with,
    plot_agreement,
    plot_entropy,
    shift_log_probs,
    two_rows,
)
from kitlib.trainer.task_runner import TaskRunner
from kitlib.transfer_queue import TransferQueue

LENGTHS = [30, 10, 40, 20]


def words(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


class TestLogProb:
    def check(self, answer: Any) -> Answer:
        return check_log_prob(answer, [1, 0, 0], 0, temperature=0.5)

    def test_right_and_open(self) -> None:
        assert self.check(-0.24).ok is True
        assert self.check(torch.tensor(-0.2395)).ok is True
        assert self.check(...).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            (0.787, "that is the probability"),
            (-0.551, "that is for temperature 1"),
            (-0.104, "the logarithm to base 10"),
            (1, "that is the logit:"),
            (2, "that is the logit over the temperature"),
            (-0.794, "you multiplied by the temperature"),
            (-1.103, "you divided the log-probability"),
            (0.24, "the sign is not"),
            (-3.0, "too small"),
            ("-0.24", "the answer is a number"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(self.check(answer))


class TestPositions:
    def check(self, answer: Any) -> Answer:
        return check_positions(answer, prompt_len=4, response_len=3)

    def test_right_and_open(self) -> None:
        assert self.check([3, 4, 5]).ok is True
        assert self.check(...).ok is None

    @pytest.mark.parametrize(
        "answer", [range(3, 6), (3, 4, 5), {5, 4, 3}, [3.0, 4.0, 5.0], torch.tensor([3, 4, 5]), list(np.arange(3, 6))]
    )
    def test_right_in_any_dress(self, answer: Any) -> None:
        assert self.check(answer).ok is True

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ([4, 5, 6], "go one to the left"),
            ([0, 1, 2, 3, 4, 5, 6], "the whole sequence"),
            ([5, 6], "position 6 scores a token after the end"),
            ([3, 4], "there are 3 positions, not 2"),
            ([5, 4, 3], "in the order of the tokens"),
            ([2, 3, 4], "which position looks at everything before the first response token"),
            (3, "a list of positions"),
            ([3.5, 4, 5], "a list of positions"),
            ([True, 4, 5], "a list of positions"),
            ("345", "a list of positions"),
            (torch.tensor(3), "a list of positions"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(self.check(answer))


class TestRanks:
    def test_right_in_any_order(self) -> None:
        assert check_ranks([[0, 3], [1, 2]], LENGTHS, 2).ok is True
        assert check_ranks([(2, 1), {3, 0}], LENGTHS, 2).ok is True
        assert check_ranks(..., LENGTHS, 2).ok is None
        assert check_ranks([[0, 3], ...], LENGTHS, 2).ok is None

    @pytest.mark.parametrize("dress", [torch.tensor, np.array, lambda ranks: list(map(torch.tensor, ranks))])
    def test_right_in_any_dress(self, dress: Any) -> None:
        assert check_ranks(dress([[0, 3], [1, 2]]), LENGTHS, 2).ok is True

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ([[0, 1], [2, 3]], "the order in which the rows came: 40 and 60 tokens"),
            ([[0, 2], [1, 3]], "70 and 30 tokens: it can be more even"),
            ([[30, 20], [10, 40]], "these are lengths"),
            ([[0, 3], [1]], "every row from 0 to 3 goes to exactly one rank"),
            ([[0, 3], [1, 1]], "every row from 0 to 3 goes to exactly one rank"),
            ([[0, 3, 1], [2]], "the same number of rows"),
            ([[0, 1, 2, 3]], "there are 2 ranks, and you filled 1"),
            ([["0", "3"], [1, 2]], "row numbers are whole numbers"),
            ([0, 1, 2, 3], "one list of row numbers for each rank"),
            (7, "one list of row numbers for each rank"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in words(check_ranks(answer, LENGTHS, 2))


class TestShift:
    @pytest.fixture
    def scored(self) -> Any:
        return load_fixture("scored")

    def columns(self, fixture: Any, key: str) -> tuple[torch.Tensor, torch.Tensor]:
        data = fixture.tq.kv_batch_get([key], "train", ["rollout_log_probs", "old_log_probs"])
        return data["rollout_log_probs"].unbind()[0], data["old_log_probs"].unbind()[0]

    def truth(self, fault: Fault) -> tuple[str, int]:
        return fault.truth["key"], fault.truth["places"]

    def test_numbers_move_to_the_right_in_one_row(self, scored: Any) -> None:
        before = {key: self.columns(scored, key)[0] for key in scored.batch.keys}
        key, places = self.truth(shift_log_probs(scored.tq, scored.batch, seed=3))
        for other, row in before.items():
            now = self.columns(scored, other)[0]
            assert torch.equal(now, row) == (other != key)
        assert torch.equal(self.columns(scored, key)[0][places:], before[key][:-places])

    def test_right_open_and_wrong(self, scored: Any) -> None:
        fault = shift_log_probs(scored.tq, scored.batch, seed=3)
        key, places = self.truth(fault)
        assert fault.check(key, places).ok is True
        assert fault.check(key, torch.tensor(places)).ok is True
        assert "for which number of places" in words(fault.check(key, np.array([1, 2])))
        assert fault.check(..., ...).ok is None
        healthy = next(other for other in scored.batch.keys if other != key)
        assert "server and trainer agree on its tokens" in words(fault.check(healthy, places))
        assert "the other way round" in words(fault.check(key, -places))
        assert "0 places would be no fault" in words(fault.check(key, 0))
        assert "for which number of places" in words(fault.check(key, places + 1))
        assert "half of the answer" in words(fault.check(key))

    def test_the_seed_chooses_row_and_places(self, scored: Any) -> None:
        found = set()
        for seed in range(8):
            fault = shift_log_probs(scored.tq, scored.batch, seed)
            found.add(self.truth(fault))
            fault.mend()
        assert len({key for key, _ in found}) > 1
        assert {places for _, places in found} == {1, 2}

    def test_mending_leaves_no_trace(self, scored: Any) -> None:
        before = {key: self.columns(scored, key)[0] for key in scored.batch.keys}
        shift_log_probs(scored.tq, scored.batch).mend()
        assert all(torch.equal(self.columns(scored, key)[0], row) for key, row in before.items())

    def test_no_row_is_long_enough(self, tq: TransferQueue, batch: Any) -> None:
        with pytest.raises(FaultError, match="no response of the batch has 8 tokens"):
            shift_log_probs(tq, batch)


@pytest.fixture(scope="module")
def run() -> Iterator[Any]:
    """A trainer that has taken over the recorded batch, less one row, and its handle after old log-prob."""
    fixture, runner = load_fixture("sampled"), TaskRunner()
    quiet = ["trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.logger=[]"]
    small = ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    trainer = runner.start(load_config([*small, *quiet]), fixture.tq)
    try:
        assert fixture.batch is not None
        trainer.begin_step(1)
        short = fixture.batch.select_keys(fixture.batch.keys[:-1])
        yield trainer, trainer.compute_old_log_prob(trainer.balance_batch(short))
    finally:
        runner.close()


class TestScores:
    def test_scores_do_not_depend_on_the_cut_but_on_the_temperature(self, run: Any) -> None:
        trainer, batch = run
        stored = agreement(trainer, batch).old_log_probs
        few, num_passes = log_probs_with(trainer, batch, micro_batch_size=4)
        assert num_passes == 8
        assert torch.allclose(few, stored, atol=1e-4)
        assert log_probs_with(trainer, batch, max_token_len=256)[1] > 1
        assert not torch.allclose(log_probs_with(trainer, batch, temperature=0.5)[0], stored, atol=1e-2)

    def test_difference_counts_tokens_of_the_model_only(self, run: Any) -> None:
        trainer, batch = run
        case = agreement(trainer, batch)
        assert case.difference().max() < 1e-3
        spoilt = Agreement(case.rollout_log_probs + math.log(2), case.old_log_probs, case.response_mask)
        assert torch.equal(spoilt.difference() > 0, case.response_mask.bool())
        assert spoilt.numbers()["training/rollout_probs_diff_max"] == pytest.approx(spoilt.difference().max().item())

    def test_pictures(self, run: Any) -> None:
        trainer, batch = run
        case = agreement(trainer, batch)
        axes = plot_agreement({"now": case}).axes[0]
        assert len(axes.collections[0].get_offsets()) == case.response_mask.sum()
        longest = max(zip(batch.keys, batch.tags, strict=True), key=lambda pair: pair[1]["response_len"])
        bars = plot_entropy(trainer, [longest[0]]).axes[0]
        assert len(bars.patches) == longest[1]["response_len"]
        assert len({patch.get_facecolor() for patch in bars.patches}) == 2  # the model and a tool

    def test_two_rows_name_the_marks_of_padding(self, run: Any) -> None:
        trainer, batch = run
        pad = next(key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("is_padding"))
        real = next(key for key in batch.keys if key != pad)
        text = two_rows(trainer.tq, real, pad).text(200)
        for mark in ("is_padding", "3, 127 times", "0 .. 127", "1, 128 times", "response_mask"):
            assert mark in text
        assert "data_source" in text.split("equal:")[1]
        assert "0 tags and 0 fields differ" in two_rows(trainer.tq, pad, pad).text()
