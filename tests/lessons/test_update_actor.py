"""The lessons of notebook 09: a dry run changes nothing, and every check names each planted mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kitlib.algos.aggregation import agg_loss
from kitlib.algos.policy_loss import POLICY_LOSS_REGISTRY
from kitlib.config import load_config
from kitlib.lessons import Answer, LessonError
from kitlib.lessons.update_actor import (
    broken_updates,
    check_aggregation,
    check_first_loss,
    check_moving,
    check_policy_loss,
    dry_run,
    learning_rates,
    mini_batches,
    numbers,
    run_two_ranks,
)
from kitlib.lessons.update_actor.faults import FAULTS
from kitlib.trainer.task_runner import TaskRunner
from kitlib.transfer_queue import KVBatchMeta, padded


def said(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


@pytest.fixture(scope="module")
def run() -> Iterator[tuple[Any, KVBatchMeta]]:
    """A trainer before the update of its first step, and the batch."""
    small = ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "trainer.logger=[]"]
    runner = TaskRunner()
    trainer = runner.start(load_config(small))
    trainer.begin_step(1)
    trainer.prepare_step()
    batch = trainer.compute_old_log_prob(trainer.balance_batch(trainer.sample()))
    yield trainer, trainer.compute_advantage(batch)
    runner.close()


class TestMoving:
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.1])

    @pytest.mark.parametrize(
        "answer", [{1, 2, 4}, [4, 2, 1], torch.tensor([1, 2, 4]), np.array([1, 2, 4]), {1.0, 2, 4}]
    )
    def test_right(self, answer: Any) -> None:
        assert check_moving(answer, self.advantages, self.ratio).ok is True

    def test_open(self) -> None:
        assert check_moving(..., self.advantages, self.ratio).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ({0, 1, 2, 4}, "token 0 does not move: it was good and is already much more likely"),
            ({1, 2, 3, 4}, "token 3 does not move: it was bad and is already much less likely"),
            ({1, 4}, "token 2 moves: its ratio is out of range, but on the wrong side"),
            ({1, 2}, "token 4 moves: its ratio lies inside the range"),
            ({1, 2, 7}, "there is no token 7"),
            (2, "a set of token numbers"),
            ({"1"}, "a set of token numbers"),
            ("124", "a set of token numbers"),
            ([False, True, True, False, True], "a set of token numbers"),
            ({}, "token 1 moves"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in said(check_moving(answer, self.advantages, self.ratio))


class TestAggregation:
    losses = torch.tensor([[3.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()

    def test_right(self) -> None:
        assert check_aggregation(1.5, 3, 2.0, self.losses, self.mask).ok is True
        assert check_aggregation(np.float32(1.5), np.int64(3), torch.tensor([2.0]), self.losses, self.mask).ok is True

    def test_open(self) -> None:
        assert check_aggregation(1.5, ..., 2.0, self.losses, self.mask).ok is None

    @pytest.mark.parametrize(
        ("answers", "mistake"),
        [
            ((1.0, 3, 2), "token-mean: you divided by all places, and the padding"),
            ((2.0, 3, 2), "token-mean: this is seq-mean-token-mean"),
            ((1.5, 6, 2), "seq-mean-token-sum: this is the sum, which is not divided yet"),
            ((1.5, 2, 3), "seq-mean-token-sum: this is seq-mean-token-mean"),
            ((1.5, 3, 1), "seq-mean-token-mean: you divided by all places"),
            ((1.5, 3, 0.7), "seq-mean-token-mean: 0.7 is not it: take the mean over the tokens of each answer"),
            ((1.5, "3", 2), "seq-mean-token-sum: the answer is a number"),
            ((True, 3, 2), "token-mean: the answer is a number"),
        ],
    )
    def test_wrong(self, answers: tuple[Any, Any, Any], mistake: str) -> None:
        assert mistake in said(check_aggregation(*answers, self.losses, self.mask))

    def test_padding_in_the_mean_of_an_answer(self) -> None:
        losses = torch.tensor([[4.0, 0.0], [1.0, 2.0]])
        mask = torch.tensor([[1, 0], [1, 1]]).bool()
        assert "padding" in said(check_aggregation(7 / 3, 3.5, 1.75, losses, mask))


class TestFirstLoss:
    @pytest.fixture
    def truth(self, run: tuple[Any, KVBatchMeta]) -> tuple[Tensor, Tensor, float]:
        data = run[0].pull(run[1], "advantages", "response_mask")
        advantages, mask = padded(data["advantages"]), padded(data["response_mask"])
        return advantages, mask, -float((advantages * mask).sum() / mask.sum())

    def test_it_is_what_the_update_prints(self, run: Any, truth: Any) -> None:
        look = dry_run(*run)
        assert check_first_loss(look["pg_loss"], look["ppo_kl"], *run).ok is True
        assert check_first_loss(torch.tensor(truth[2]), 0, *run).ok is True
        assert check_first_loss(np.float32(truth[2]), np.int64(0), *run).ok is True
        assert check_first_loss(..., 0.0, *run).ok is None

    def test_wrong(self, run: Any, truth: Any) -> None:
        advantages, mask, true = truth
        num_tokens = run[0].pull(run[1], "advantages")["advantages"].values().numel()
        planted = {
            "the sign": -true,
            "tokens of the tool count": -float((advantages * mask).sum()) / num_tokens,
            "the padding counts": -float((advantages * mask).mean()),
            "the sum over the trained tokens, which is not divided": -float((advantages * mask).sum()),
            "a long answer has more of them": 0.0,
            "start from the advantages": true * 3 + 1,
        }
        for mistake, answer in planted.items():
            assert mistake in said(check_first_loss(answer, 0.0, *run)).replace("\n", " ")
        assert "nothing has changed yet" in said(check_first_loss(true, 0.1, *run))
        assert "pg_loss is one number, not '0.3'" in said(check_first_loss("0.3", 0.0, *run))
        assert "pg_loss is one number, not a tensor of shape [32, " in said(check_first_loss(advantages, 0.0, *run))
        assert "ppo_kl is one number" in said(check_first_loss(true, None, *run))


class TestLooking:
    def test_a_dry_run_changes_nothing(self, run: Any) -> None:
        trainer, batch = run
        worker, config, metrics = trainer.actor_rollout_wg.worker, trainer.config, dict(trainer.metrics)
        before = trainer.actor_rollout_wg.state_dict_for_rollout()
        look = dry_run(trainer, batch, entropy_coeff=0.5)
        assert look["loss"] == pytest.approx(look["pg_loss"] - 0.5 * look["entropy_loss"])
        assert look["grad_norm"] == pytest.approx(float(look.gradient.norm()))
        after = trainer.actor_rollout_wg.state_dict_for_rollout()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert trainer.config is config
        assert worker.settings is config.actor_rollout_ref.actor
        assert trainer.metrics == metrics
        assert worker.settings.entropy_coeff == 0
        assert "optimizer_step" not in vars(worker.engine)
        assert worker.engine.lr_scheduler.last_epoch == 0

    def test_a_dry_run_is_one_mini_batch(self, run: Any) -> None:
        with pytest.raises(LessonError, match="these settings make 2"):
            dry_run(*run, ppo_mini_batch_size=2)

    def test_every_mini_batch_is_seen(self, run: Any) -> None:
        trainer, batch = run
        worker = trainer.actor_rollout_wg.worker
        worker.save_weights("before")
        seen = mini_batches(trainer, batch, ppo_mini_batch_size=2, ppo_epochs=2)
        worker.restore_weights("before")
        assert len(seen) == 4
        assert "_step" not in vars(worker)
        mean = sum(step["actor/pg_loss"] for step in seen) / 4
        assert trainer.metrics["actor/pg_loss"] == pytest.approx(mean)

    def test_learning_rates(self) -> None:
        warm = learning_rates("lr_warmup_steps=10")
        assert (warm[0], warm[10], warm[59]) == (0.0, 3e-4, 3e-4)
        assert learning_rates() == [3e-4] * 60
        assert learning_rates("lr_warmup_steps=10", "lr_scheduler_type=cosine")[59] < 1e-5

    def test_a_table_of_numbers(self) -> None:
        text = numbers({"one": {"actor/pg_loss": -1e-9, "b": 2.5}}, ("pg_loss", "b"), "title").text()
        assert "0.0000" in text
        assert "-0.0000" not in text
        assert "2.5000" in text


class TestBrokenUpdates:
    def test_each_fault_leaves_its_trace_and_is_mended(self, run: Any) -> None:
        trainer, batch = run
        names = ("response_mask", "old_log_probs", "loss_mask", "advantages")
        before = {name: trainer.pull(batch, name)[name].values().clone() for name in names}
        cases = broken_updates(trainer, batch, seed=2)
        for name in names:
            assert torch.equal(trainer.pull(batch, name)[name].values(), before[name])
        sound, by_fault = cases.looks["sound"], {cases.reveal(letter): cases.looks[letter] for letter in "ABCD"}
        assert by_fault["mask"]["grad_norm"] == 0
        assert by_fault["shift"]["pg_clipfrac"] > 0.05 > sound["pg_clipfrac"]
        assert by_fault["sign"]["pg_loss"] == pytest.approx(-sound["pg_loss"])
        shares = [by_fault["count"][name] / sound[name] for name in ("pg_loss", "grad_norm")]
        assert shares[0] == pytest.approx(shares[1], rel=1e-3)
        assert shares[0] < 0.9
        assert "sound" in cases.table().text()

    def test_check(self, run: Any) -> None:
        cases = broken_updates(*run, seed=2)
        truth = [cases.reveal(letter) for letter in "ABCD"]
        assert cases.check(*truth).ok is True
        assert cases.check(..., *truth[1:]).ok is None
        assert cases.check([truth[0]], f" {truth[1]} ", truth[2].upper(), truth[3]).ok is True
        assert cases.check(*(FAULTS[name][0] for name in truth)).ok is True  # the fields that are spoilt
        assert "'masks' is none of mask" in said(cases.check("masks", *truth[1:]))
        assert "['mask', 'sign'] is none of mask" in said(cases.check(["mask", "sign"], *truth[1:]))
        assert "one fault for each of A, B, C, D, not 3" in said(cases.check(*truth[:3]))
        evidence = {
            "mask": "the gradient would be 0",
            "shift": "ppo_kl and pg_clipfrac would be far from 0",
            "count": "by the same factor",
            "sign": "would turn the sign of pg_loss around",
        }
        for fault, words in evidence.items():
            other = next(letter for letter in "ABCD" if cases.reveal(letter) != fault)
            answers = [fault if letter == other else cases.reveal(letter) for letter in "ABCD"]
            assert f"{other} is not {fault!r}" in said(cases.check(*answers))
            assert words in said(cases.check(*answers))

    def test_one_fault_at_a_time(self, run: Any) -> None:
        cases = broken_updates(*run)
        cases.plant("A")
        with pytest.raises(LessonError, match="mend the fault"):
            cases.plant("B")
        cases.mend()
        cases.mend()


def ratio(kw: Any) -> Tensor:
    return (kw["log_prob"] - kw["old_log_prob"]).exp()


def averaged(values: Tensor, kw: Any, **info: Any) -> Tensor:
    return agg_loss(values, kw["response_mask"], kw["loss_agg_mode"], **info)


OWN_LOSSES = {
    "the sign: minimizing": lambda kw: averaged(kw["advantages"] * ratio(kw), kw, **kw["config"].global_batch_info),
    "masked places count": lambda kw: (-kw["advantages"] * ratio(kw)).mean(),
    "masked places count, too": lambda kw: (-kw["advantages"] * ratio(kw)).sum(),
    "this is the clipped loss": lambda kw: POLICY_LOSS_REGISTRY["vanilla"](**kw)[0],
    "the ratio is clipped": lambda kw: averaged(-kw["advantages"] * ratio(kw).clamp(0.8, 1.2), kw),
    "is the LOG of the ratio": lambda kw: averaged(-kw["advantages"] * ratio(kw).log(), kw),
    "upside down": lambda kw: averaged(-kw["advantages"] / ratio(kw), kw),
    "old_log_prob is missing": lambda kw: averaged(-kw["advantages"] * kw["log_prob"], kw),
    "the advantages are missing": lambda kw: averaged(-ratio(kw), kw),
    "no gradient reaches log_prob": lambda kw: averaged(-kw["advantages"] * ratio(kw).detach(), kw),
    "two micro-batches do not add up": lambda kw: averaged(-kw["advantages"] * ratio(kw), kw),
    "right for token-mean, but the same for every other average": lambda kw: agg_loss(
        -kw["advantages"] * ratio(kw), kw["response_mask"], "token-mean", **kw["config"].global_batch_info
    ),
    "right on one GPU, but too small on two": lambda kw: averaged(
        -kw["advantages"] * ratio(kw), kw, **kw["config"].global_batch_info | {"dp_size": 1}
    ),
    "your loss raised ZeroDivisionError": lambda kw: 1 / 0,
    "must be one number": lambda kw: -kw["advantages"] * ratio(kw),
    "on the toy batch it gives": lambda kw: averaged(-2 * kw["advantages"] * ratio(kw), kw),
}


class TestOwnLoss:
    @pytest.fixture
    def check(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def checked(loss: Any) -> Answer:
            monkeypatch.setitem(POLICY_LOSS_REGISTRY, "own", lambda **kw: (loss(kw), {}))
            return check_policy_loss("own")

        return checked

    def test_right(self, check: Any) -> None:
        sound = lambda kw: averaged(-kw["advantages"] * ratio(kw), kw, **kw["config"].global_batch_info)  # noqa: E731
        assert check(sound).ok is True

    def test_open(self, check: Any) -> None:
        assert check(lambda kw: ...).ok is None

    @pytest.mark.parametrize("mistake", OWN_LOSSES)
    def test_wrong(self, check: Any, mistake: str) -> None:
        assert mistake in said(check(OWN_LOSSES[mistake]))

    def test_the_loss_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for returned in (lambda **kw: (-kw["advantages"] * ratio(kw)).mean(), lambda **kw: None):
            monkeypatch.setitem(POLICY_LOSS_REGISTRY, "own", returned)
            assert "return two things" in said(check_policy_loss("own"))

    def test_not_registered(self) -> None:
        assert "nothing" not in POLICY_LOSS_REGISTRY
        assert "no loss is registered under 'nothing'" in said(check_policy_loss("nothing"))


@pytest.mark.slow
def test_two_ranks_get_the_gradient_of_one_process() -> None:
    two = run_two_ranks()
    torch.testing.assert_close(two.gradient, two.one_process)
    assert (two.gradient_own_counts - two.one_process).abs().max() > 0.1
    assert two.held == [(3, 4), (2, 4)]
    assert two.inside == [(5, 4), (5, 4)]
    assert two.shards() == [("layer.weight", (5, 4), "Shard(0)", (48, 32))]
