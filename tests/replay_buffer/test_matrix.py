"""Evictions and refills, enumerated over mode, strategy, group filter and failure.

Each case holds one group of every kind: fresh and good, stale, constant, failed with a row, failed without one. The
table in kitlib/replay_buffer/__init__.py says which of them go and how many prompts come instead.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kitlib.replay_buffer import (
    FILTERED_REWARD_COUNTS,
    ReplayBuffer,
    ReplayBufferAsync,
    SampleError,
    SamplerArgumentError,
)
from tests.replay_buffer.conftest import Board

STEP, THRESHOLD = 10, 3
KINDS = ("stale", "constant", "failed", "empty")


def names(kinds: set[str]) -> str:
    """One name for a set, whatever its order in this process."""
    return "+".join(sorted(kinds)) or "none"


def fill(board: Board, kinds: set[str]) -> None:
    for uid in ("good1", "good2"):
        board.group(uid, step=STEP)
    if "stale" in kinds:
        board.group("stale", step=STEP - THRESHOLD)  # spans THRESHOLD + 1 versions
    if "constant" in kinds:
        board.group("constant", step=STEP, scores=(1.0, 1.0))
    if "failed" in kinds:
        board.group("failed", status="failure", step=STEP, scores=(1.0,))
    if "empty" in kinds:
        board.group("empty", status="failure", step=STEP, scores=())


def make(board: Board, cls: type[ReplayBuffer], refilled: list[int], **more: Any) -> ReplayBuffer:
    numbers = itertools.count()

    def refill(num_prompts: int) -> None:
        refilled.append(num_prompts)
        for _ in range(num_prompts):
            board.group(f"new{next(numbers)}", step=STEP)

    arguments = {"max_off_policy_threshold": THRESHOLD, "refill_fn": refill, "train_batch_size": 8, "gen_batch_size": 1}
    return cls(board.tq, **{**arguments, **more})


@pytest.mark.parametrize("strategy", ["drop", "wait"])
@pytest.mark.parametrize("metric", ["reward", None])
@pytest.mark.parametrize("kinds", [set(c) for n in range(5) for c in itertools.combinations(KINDS, n)], ids=names)
def test_async_evicts_each_group_once_and_refills_exactly_as_many(
    board: Board, strategy: str, metric: str | None, kinds: set[str]
) -> None:
    fill(board, kinds)
    refilled: list[int] = []
    buffer = make(board, ReplayBufferAsync, refilled, max_off_policy_strategy=strategy, filter_groups_metric=metric)
    gone = kinds & {"failed", "empty"}
    gone |= kinds & {"stale"} if strategy == "drop" else set()
    gone |= kinds & {"constant"} if metric else set()
    batch, metrics = buffer.sample(STEP, "train", batch_size=2)
    assert sum(refilled) == len(gone)
    assert len(refilled) == bool(gone)  # all in one go
    assert not {key.split("_")[0] for key in board.keys()} & gone
    assert len(batch) == 4
    expected = {}
    if "stale" in gone:
        expected["training/off_policy/evicted_samples"] = 1
        for what in ("mean", "max", "min"):
            expected[f"training/off_policy/evicted_samples_staleness/{what}"] = THRESHOLD + 1
    if "constant" in gone:
        expected["training/filter_groups/evicted_samples"] = 1
        expected[FILTERED_REWARD_COUNTS] = {1.0: 1}
    if kinds & {"failed", "empty"}:
        expected["training/rollout_failure/evicted_samples"] = len(kinds & {"failed", "empty"})
    assert metrics == expected


@pytest.mark.parametrize("metric", ["reward", None])
@pytest.mark.parametrize("refill_failed", [True, False])
@pytest.mark.parametrize("kinds", [set(c) for n in range(5) for c in itertools.combinations(KINDS, n)], ids=names)
def test_sync_never_drops_for_age_and_keeps_failed_groups_with_rows(
    board: Board, metric: str | None, refill_failed: bool, kinds: set[str]
) -> None:
    fill(board, kinds)
    refilled: list[int] = []
    buffer = make(board, ReplayBuffer, refilled, filter_groups_metric=metric, sync_refill_failed_groups=refill_failed)
    batch, metrics = buffer.sample(STEP, "train", batch_size=2)
    uids = {key.split("_")[0] for key in batch.keys}
    assert len(uids) == 2 or uids == {"stale"} | (uids - {"stale"})
    assert ("stale" in uids) == ("stale" in kinds)  # the oldest prompt goes first, however old
    assert "training/off_policy/evicted_samples" not in metrics
    assert metrics.get("training/filter_groups/evicted_samples", 0) == (bool(metric) and "constant" in kinds)
    assert metrics.get("training/rollout_failure/evicted_samples", 0) == (refill_failed and "empty" in kinds)
    assert refilled == []  # two good groups were there from the start
    if metric:
        assert board.keys() == set(batch.keys)  # the surplus is discarded


def test_sync_filter_credits_two_prompts_for_each_evicted_one_within_the_bound(board: Board) -> None:
    for i in range(3):
        board.group(f"constant{i}", scores=(0.0, 0.0))
    board.marker("slow", "running")
    asked: list[int] = []

    def refill(num_prompts: int) -> None:
        asked.append(num_prompts)
        board.marker("slow", "finished")
        board.rows("slow")
        for i in range(num_prompts):
            board.group(f"new{len(asked)}{i}")

    buffer = ReplayBuffer(
        board.tq, refill_fn=refill, filter_groups_metric="reward", train_batch_size=4, gen_batch_size=1
    )
    batch, metrics = buffer.sample(1, "train", batch_size=2)
    assert asked == [3]  # credit 6, four may be in flight, one already is
    assert len(batch) == 4
    assert metrics["training/filter_groups/evicted_samples"] == 3
    assert metrics[FILTERED_REWARD_COUNTS] == {0.0: 3}
    assert metrics["training/filter_groups/discarded_surplus_samples"] == 2


def test_sync_filter_refills_whole_fetches_only(board: Board) -> None:
    board.group("constant", scores=(1.0, 1.0))
    asked: list[int] = []

    def refill(num_prompts: int) -> None:
        asked.append(num_prompts)
        for i in range(num_prompts):
            board.group(f"new{len(asked)}{i}", scores=(1.0, 1.0) if len(asked) == 1 else (1.0, 0.0))

    buffer = ReplayBuffer(
        board.tq, refill_fn=refill, filter_groups_metric="reward", train_batch_size=8, gen_batch_size=2
    )
    buffer.sample(1, "train", batch_size=2)
    assert asked == [2, 4]


def test_sync_filter_waits_until_nothing_is_in_flight(board: Board) -> None:
    """All rows of a sync step come from the same weights, so nothing may be left running."""
    board.group("a")
    board.marker("late", "running")
    looks = 0

    class Watched(ReplayBuffer):
        def view(self, partition_id: str):
            nonlocal looks
            looks += 1
            if looks == 3:
                board.rows("late")
                board.marker("late", "finished")
            return super().view(partition_id)

    buffer = Watched(
        board.tq, poll_interval=0.01, refill_fn=lambda n: None, filter_groups_metric="reward", train_batch_size=4
    )
    batch, metrics = buffer.sample(1, "train", batch_size=1)
    assert looks == 3
    assert metrics["training/filter_groups/discarded_surplus_samples"] == 1
    assert board.keys() == set(batch.keys)


def test_sync_replaces_failed_groups_that_left_no_row(board: Board) -> None:
    board.group("good")
    board.marker("empty", "failure")
    refilled: list[int] = []
    buffer = make(board, ReplayBuffer, refilled, sync_refill_failed_groups=True)
    batch, metrics = buffer.sample(1, "train", batch_size=2)
    assert refilled == [1]
    assert len(batch) == 4
    assert metrics == {"training/rollout_failure/evicted_samples": 1}


@pytest.mark.parametrize("cls", [ReplayBuffer, ReplayBufferAsync])
def test_in_val_nothing_is_evicted(board: Board, cls: type[ReplayBuffer]) -> None:
    board.group("old", step=-100, partition_id="val")
    board.group("constant", partition_id="val", scores=(1.0, 1.0))
    board.group("failed", status="failure", partition_id="val", scores=(1.0,))
    refilled: list[int] = []
    buffer = make(board, cls, refilled, filter_groups_metric="reward")
    batch, metrics = buffer.sample(STEP, "val", batch_size=3)
    assert (len(batch), metrics, refilled) == (5, {}, [])


def test_async_wait_holds_sampling_back_for_an_old_prompt_in_flight(board: Board) -> None:
    board.group("ready", step=STEP)
    board.marker("old", "running", step=STEP - THRESHOLD + 1)
    buffer = ReplayBufferAsync(
        board.tq,
        max_off_policy_threshold=THRESHOLD,
        max_off_policy_strategy="wait",
        poll_interval=0.01,
        give_up_after=5,
    )
    looks = 0
    view = buffer.view

    def finish_on_third_look(partition_id: str):
        nonlocal looks
        looks += 1
        if looks == 3:
            assert buffer.why_waiting().held_back_by == ("old",)
            board.rows("old")
            board.marker("old", "finished", step=STEP - THRESHOLD + 1)
        return view(partition_id)

    buffer.view = finish_on_third_look
    batch, _ = buffer.sample(STEP, "train", batch_size=1)
    assert {key.split("_")[0] for key in batch.keys} == {"old"}


def test_async_does_not_wait_for_younger_prompts_or_without_a_threshold(board: Board) -> None:
    board.group("ready", step=STEP)
    board.marker("young", "running", step=STEP - THRESHOLD + 2)
    waits = {"max_off_policy_strategy": "wait", "give_up_after": 0.1}
    ReplayBufferAsync(board.tq, max_off_policy_threshold=THRESHOLD, **waits).sample(STEP, "train", 1)
    board.group("ready2", step=STEP)
    board.marker("ancient", "running", step=-100)
    ReplayBufferAsync(board.tq, max_off_policy_threshold=None, **waits).sample(STEP, "train", 1)


def test_get_sampleable_count_changes_nothing(board: Board) -> None:
    fill(board, set(KINDS))
    before = board.keys()
    refilled: list[int] = []
    buffer = make(board, ReplayBufferAsync, refilled, filter_groups_metric="reward")
    assert buffer.get_sampleable_count(STEP, "train") == 2
    assert (board.keys(), refilled) == (before, [])


def test_wait_for_sampleable_returns_uids_and_evictions_and_leaves_the_groups(board: Board) -> None:
    fill(board, {"failed"})
    refilled: list[int] = []
    uids, metrics = make(board, ReplayBufferAsync, refilled).wait_for_sampleable(STEP, "train", 3)
    assert uids == {"good1", "good2", "new0"}
    assert metrics == {"training/rollout_failure/evicted_samples": 1}
    assert {"good1", "good1_0_0", "new0"} <= board.keys()


def test_a_finished_group_is_classified_once(board: Board) -> None:
    board.group("a")
    buffer = ReplayBufferAsync(board.tq, filter_groups_metric="reward", refill_fn=lambda n: None)
    buffer.get_sampleable_count(1, "train")
    reads = 0
    get = board.tq.kv_batch_get

    def counted(*args: Any, **kwargs: Any):
        nonlocal reads
        reads += 1
        return get(*args, **kwargs)

    board.tq.kv_batch_get = counted
    buffer.get_sampleable_count(1, "train")
    assert reads == 0
    board.group("b")
    buffer.get_sampleable_count(1, "train")
    assert reads == 1


def test_another_metric_is_read_from_reward_extra_info_and_named_when_it_is_missing(board: Board) -> None:
    board.rows("same", scores=(1.0, 0.0), acc=1.0)
    board.marker("same", "finished")
    buffer = ReplayBufferAsync(board.tq, filter_groups_metric="acc", refill_fn=lambda n: None)
    assert buffer.get_sampleable_count(1, "train") == 0
    board.group("lacks")
    with pytest.raises(SampleError, match="metric=acc: the finished groups lacks lack it"):
        buffer.get_sampleable_count(1, "train")


def test_a_group_of_one_is_never_constant(board: Board) -> None:
    board.group("single", scores=(1.0,))
    buffer = ReplayBufferAsync(board.tq, filter_groups_metric="reward", refill_fn=lambda n: None)
    assert buffer.get_sampleable_count(1, "train") == 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"max_off_policy_threshold": 0}, "max_off_policy_threshold=0"),
        ({"max_off_policy_threshold": 1.5}, "max_off_policy_threshold=1.5"),
        ({"max_off_policy_strategy": "keep"}, "max_off_policy_strategy=keep"),
        ({"filter_groups_metric": "reward"}, "refill_fn"),
        ({"sync_refill_failed_groups": True}, "refill_fn"),
        ({"sync_refill_failed_groups": True, "refill_fn": print, "gen_batch_size": 4}, "gen_batch_size=1, not 4"),
        ({"filter_groups_metric": "reward", "refill_fn": print, "max_inflight_gen_batches": 0}, "max_inflight"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(board: Board, arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(SamplerArgumentError, match=what):
        ReplayBuffer(board.tq, **arguments)
