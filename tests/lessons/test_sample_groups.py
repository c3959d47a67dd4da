"""Notebook 05: toys behave like the real thing, checks name each planted mistake, odd groups are what they say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.inspector.doctor import doctor
from kitlib.keys import uid_of
from kitlib.lessons import Answer, LessonError
from kitlib.lessons.sample_groups import (
    SampleAside,
    ToyRefill,
    WholeGroups,
    check_refill,
    check_sampled,
    check_wait,
    check_whole_groups,
    plant_odd_groups,
    put_group,
)
from kitlib.replay_buffer import Evictions, ReplayBuffer, SampleError
from kitlib.transfer_queue import TransferQueue


@pytest.fixture
def tq() -> Iterator[TransferQueue]:
    queue = TransferQueue()
    yield queue
    queue.close()


def words(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


class TestSampled:
    @pytest.fixture(autouse=True)
    def groups(self, tq: TransferQueue) -> None:
        put_group(tq, "u2", (1.0, 0.0), step=3)
        put_group(tq, "u3", (0.0, 1.0), step=2)
        put_group(tq, "u4", (1.0,), "failure", step=2)
        put_group(tq, "u1", (1.0,), "running", step=1)
        put_group(tq, "u5", (), "pending", step=3)

    @pytest.mark.parametrize("answer", [{"u3", "u4"}, ["u4", "u3"], ("u3 ", " u4"), {"u3": 2, "u4": 2}.keys()])
    def test_right_and_so_it_comes(self, tq: TransferQueue, answer: Any) -> None:
        assert check_sampled(answer, tq, 2).ok is True
        batch, _ = ReplayBuffer(tq).sample(3, "train", 2)
        assert {uid_of(key) for key in batch.keys} == {"u3", "u4"}

    def test_open(self, tq: TransferQueue) -> None:
        assert check_sampled(..., tq, 2).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ({"u1", "u3"}, "u1 is in flight: however old it is"),
            ({"u3", "u5"}, "u5 is in flight"),
            ({"u2", "u3"}, "u2 is settled, but 2 settled prompts were submitted at an earlier step"),
            ({"u2", "u3"}, "a failed prompt is settled, too"),
            ({"u4"}, "1 group instead of 2: batch_size counts prompts"),
            ({"u4"}, "a prompt of step 2 is missing"),
            ({"u3_0_0", "u4"}, "u3_0_0 is the key of a row: name the whole group by its uid, u3"),
            ({"u3", "u9"}, "u9 has no marker here"),
            ("u3", "a set of uids"),
            (2, "a set of uids"),
        ],
    )
    def test_wrong(self, tq: TransferQueue, answer: Any, mistake: str) -> None:
        assert mistake in words(check_sampled(answer, tq, 2))

    def test_the_missing_one_is_not_told(self, tq: TransferQueue) -> None:
        assert "u4" not in words(check_sampled({"u3"}, tq, 2))


class TestRefill:
    @pytest.fixture
    def buffer(self, tq: TransferQueue) -> ReplayBuffer:
        put_group(tq, "u1", (1.0, 1.0))
        put_group(tq, "u2", (0.0, 0.0))
        put_group(tq, "u3", (1.0, 0.0))
        refill = ToyRefill(tq, [(1.0, 0.0)] * 4)
        return ReplayBuffer(tq, refill_fn=refill, filter_groups_metric="reward", train_batch_size=3, gen_batch_size=1)

    @pytest.mark.parametrize("answer", [3, 3.0, np.int64(3), torch.tensor(3)])
    def test_right_and_so_it_comes(self, buffer: ReplayBuffer, answer: Any) -> None:
        assert check_refill(answer, buffer, 1, 3).ok is True
        _, metrics = buffer.sample(1, "train", 3)
        assert buffer.refill_fn.calls == [3]  # type: ignore[union-attr]
        assert metrics["training/filter_groups/evicted_samples"] == 2
        assert metrics["training/filter_groups/discarded_surplus_samples"] == 1

    def test_looking_evicts_nothing(self, buffer: ReplayBuffer) -> None:
        before = buffer.tq.kv_list()
        check_refill(3, buffer, 1, 3)
        assert buffer.tq.kv_list() == before

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            (2, "one for one is the rule of the async modes"),
            (4, "that is the credit, and no more than 3 prompts may be in flight"),
            (2, "it counts what it has evicted"),
            (1, "the credit which is left"),
            (0, "replaced by the same look"),
            (6, "double, and mind the bound"),
            (True, "a whole number"),
            ("3", "a whole number"),
            (2.5, "a whole number"),
        ],
    )
    def test_wrong(self, buffer: ReplayBuffer, answer: Any, mistake: str) -> None:
        assert mistake in words(check_refill(answer, buffer, 1, 3))

    def test_open(self, buffer: ReplayBuffer) -> None:
        assert check_refill(..., buffer, 1, 3).ok is None


def test_a_toy_refill_ends_with_its_groups(tq: TransferQueue) -> None:
    refill = ToyRefill(tq, [(1.0,)])
    refill(1)
    assert {"r1", "r1_0_0"} == set(tq.kv_list("train")["train"])
    with pytest.raises(LessonError, match="asks for a prompt r2"):
        refill(1)


class TestWait:
    def aside(self, tq: TransferQueue, live: set[str], rows: tuple[float, ...] = (1.0,)) -> SampleAside:
        put_group(tq, "u1", (1.0, 0.0))
        put_group(tq, "u2", rows, "running")
        return SampleAside(ReplayBuffer(tq, live_uids=lambda: live, give_up_after=1.0), 1, 2)

    def test_slow(self, tq: TransferQueue) -> None:
        aside = self.aside(tq, {"u2"})
        report = aside.report()
        assert check_wait(True, "u2", report).ok is True
        assert "it will end: a task of that prompt is running" in words(check_wait(False, "u2", report))
        put_group(tq, "u2", (1.0, 0.0))
        batch, metrics = aside.result()
        assert (len(batch), metrics) == (4, {})
        with pytest.raises(LessonError, match="does not wait: it has its batch"):
            aside.report()

    def test_dead(self, tq: TransferQueue) -> None:
        aside = self.aside(tq, set(), (1.0, 0.0))
        assert aside.buffer.give_up_after == math.inf, "a slow reader must not come too late for the report"
        report = aside.report()
        assert check_wait(False, "u2", report).ok is True
        assert check_wait(np.False_, ["u2 "], report).ok is True
        assert check_wait(..., "u2", report).ok is None
        assert "nobody is left to write its status" in words(check_wait(True, "u2", report))
        assert "u1 is not in flight" in words(check_wait(False, "u1", report))
        assert "name the prompt by its uid, u2" in words(check_wait(False, "u2_0_0", report))
        assert "True or False" in words(check_wait("no", "u2", report))
        with pytest.raises(SampleError, match="no task of u2"):
            aside.result()
        with pytest.raises(SampleError):
            aside.report()


class TestOddGroups:
    @pytest.fixture(autouse=True)
    def groups(self, tq: TransferQueue) -> None:
        for uid in ("aaaa1", "bbbb1", "cccc1", "dddd1", "eeee1"):
            put_group(tq, uid, (1.0, 0.0, 1.0), num_sessions=3)

    @pytest.mark.parametrize("seed", range(5))
    def test_the_doctor_sees_each_as_what_it_is(self, tq: TransferQueue, seed: int) -> None:
        odd = plant_odd_groups(tq, seed)
        report = doctor(tq, stage="sample")
        for kind, name in (("short", "short_group"), ("orphan", "orphan_rows"), ("ghost", "ghost_key")):
            assert {uid_of(key) for one in report.of(name) for key in one.keys} == {odd.uids[kind]}
        assert odd.lost_row not in tq.kv_list("train")["train"]
        assert len(odd.healthy) == 2

    def test_right(self, tq: TransferQueue) -> None:
        odd = plant_odd_groups(tq)
        assert odd.check(**odd.uids).ok is True
        assert odd.check(**{kind: uid[:4] for kind, uid in odd.uids.items()}).ok is True
        assert odd.check(**{kind: {f" {uid}"} for kind, uid in odd.uids.items()}).ok is True
        assert odd.check(..., odd.uids["orphan"], odd.uids["ghost"]).ok is None
        assert f"{odd.uids['orphan']} has rows and no marker" in odd.reveal()

    def test_wrong(self, tq: TransferQueue) -> None:
        odd = plant_odd_groups(tq)
        short, orphan, ghost = (odd.uids[kind] for kind in ("short", "orphan", "ghost"))
        assert f"{ghost} is no orphan: it is a bare key" in words(odd.check(short, ghost, orphan))
        assert f"{orphan} is no ghost: it has rows and no marker" in words(odd.check(short, ghost, orphan))
        assert "is no short: it has its marker and all its rows" in words(odd.check(odd.healthy[0], orphan, ghost))
        assert f"{short} is no ghost: it has a marker and fewer rows" in words(odd.check(short, orphan, short))
        assert "is the key of a row" in words(odd.check(f"{short}_0_0", orphan, ghost))
        assert "no group is called 'zzzz'" in words(odd.check(short, "zzzz", ghost))
        assert "no group is called ''" in words(odd.check(short, "", ghost))

    def test_too_short(self, tq: TransferQueue) -> None:
        for uid in ("a1x", "a2x", "a3x"):
            put_group(tq, uid, (1.0, 0.0))
        odd = plant_odd_groups(tq, seed=3)
        _, orphan, ghost = odd.uids.values()
        assert "short: 4 groups begin with 'a'; write as much of the uid" in words(odd.check("a", orphan, ghost))

    def test_printing_does_not_give_it_away(self, tq: TransferQueue) -> None:
        odd = plant_odd_groups(tq)
        assert not any(uid in repr(odd) for uid in odd.uids.values())

    def test_three_groups_are_too_few(self, tq: TransferQueue) -> None:
        tq.kv_clear(keys=["aaaa1", "bbbb1"], partition_id="train")
        with pytest.raises(LessonError, match="four finished groups are needed, and train has 3"):
            plant_odd_groups(tq)


def test_whole_groups_replaces_a_short_group(tq: TransferQueue) -> None:
    put_group(tq, "u1", (1.0,))
    put_group(tq, "u2", (1.0, 0.0))
    batch, metrics = WholeGroups(tq, refill_fn=ToyRefill(tq, [(0.0, 1.0)])).sample(1, "train", 2)
    assert batch.keys == ["u2_0_0", "u2_1_0", "r1_0_0", "r1_1_0"]
    assert metrics == {"training/rollout_failure/evicted_samples": 1}


class Open(ReplayBuffer):
    def evictions(self, global_steps, view):
        return Evictions(failed=...)


class InFlight(ReplayBuffer):
    def evictions(self, global_steps, view):
        uids = view.terminal | view.in_flight
        return Evictions(failed={uid for uid in uids if len(view.keys_of([uid])) < view.expected_sessions[uid]})


class FinishedOnly(ReplayBuffer):
    def evictions(self, global_steps, view):
        uids = view.prompts["finished"]
        return Evictions(failed={uid for uid in uids if len(view.keys_of([uid])) < view.expected_sessions[uid]})


class FailedOnly(ReplayBuffer):
    def evictions(self, global_steps, view):
        return Evictions(failed=frozenset(view.prompts["failure"]))


class Everything(ReplayBuffer):
    def evictions(self, global_steps, view):
        return Evictions(failed=frozenset(view.terminal))


class LessThanTwo(ReplayBuffer):
    def evictions(self, global_steps, view):
        short = {uid for uid in view.terminal if len(view.keys_of([uid])) < 2}
        return Evictions(failed=short) if view.partition_id == "train" else Evictions()


class AlwaysTwo(ReplayBuffer):
    def evictions(self, global_steps, view):
        short = {uid for uid in view.terminal if len(view.keys_of([uid])) < 2 and view.expected_sessions[uid] == 2}
        return Evictions(failed=short) if view.partition_id == "train" else Evictions()


class AsConstant(ReplayBuffer):
    def evictions(self, global_steps, view):
        short = {uid for uid in view.terminal if len(view.keys_of([uid])) < view.expected_sessions[uid]}
        return Evictions(constant=dict.fromkeys(short, 0.0)) if view.partition_id == "train" else Evictions()


class Raises(ReplayBuffer):
    def evictions(self, global_steps, view):
        return Evictions(failed=view.short)


class TestWholeGroups:
    def test_right(self) -> None:
        assert check_whole_groups(WholeGroups).ok is True

    def test_open(self) -> None:
        assert check_whole_groups(Open).ok is None

    @pytest.mark.parametrize(
        ("sampler", "mistake"),
        [
            (ReplayBuffer, "it keeps a finished group with one row of two"),
            (ReplayBuffer, "it keeps a failed group that is short"),
            (InFlight, "it evicts a prompt in flight"),
            (InFlight, 'it evicts from the partition "val"'),
            (FinishedOnly, "view.terminal has finished and failed prompts"),
            (FailedOnly, "finished says that all sessions have settled"),
            (Everything, "it evicts a whole group"),
            (LessThanTwo, "it evicts a whole group"),
            (AlwaysTwo, "it keeps a group with two rows of three: view.expected_sessions says"),
            (AsConstant, "only groups that are returned as `failed` are replaced"),
            (Raises, "AttributeError: 'PartitionView' object has no attribute 'short'"),
            (WholeGroups.evictions, "the class itself"),
            ("WholeGroups", "the class itself"),
        ],
    )
    def test_wrong(self, sampler: Any, mistake: str) -> None:
        assert mistake in words(check_whole_groups(sampler))
