"""The group board: GRPO's numbers, and what is odd about a group, read from a real queue."""

from __future__ import annotations

import math

import pytest
import torch

from kitlib.algos import compute_grpo_outcome_advantage
from kitlib.inspector import View, group_board
from kitlib.transfer_queue import KVBatchMeta, take_snapshot
from tests.inspector.queues import board_queue, marker, put_row
from tests.inspector.reading import assert_same_facts

REWARDS = {
    "f3a1": [1, 0, 1, 1, 0, 0, 1, 1],
    "9c02": [0.1] * 8,
    "77be": [1, 0, None, 1, None, None, 0, 1],
    "0d4f": [1],
    "55aa": [math.nan, 1, 0, 0, 1, 1, 1, 1],
}


def board(view: View) -> dict[str, dict[str, str]]:
    """uid -> column -> text."""
    table = view.model.tables[0]
    names = [column.name for column in table.columns]
    return {str(row[0]): dict(zip(names, map(str, row), strict=True)) for row in table.rows}


@pytest.fixture(scope="module")
def view() -> View:
    return group_board(board_queue(REWARDS), n=8)


def test_first_line_counts_what_teaches(view: View) -> None:
    first = view.text(300).splitlines()[0]
    assert first == "train  3 of 5 groups teach something; 1 no signal; 1 single row; 2 short; 1 with NaN"
    assert_same_facts(view)


def test_numbers_are_those_of_torch(view: View) -> None:
    rewards = torch.tensor(REWARDS["f3a1"], dtype=torch.float32)
    line = board(view)["f3a1"]
    assert line["mean"] == f"{rewards.mean():.3f}" and line["std"] == f"{rewards.std():.3f}" == "0.518"
    assert line["std/n"] == f"{rewards.std(correction=0):.3f}" == "0.484"


def test_advantage_to_come_is_the_one_that_grpo_computes(view: View) -> None:
    rewards = torch.zeros(8, 2)
    rewards[:, 1] = torch.tensor(REWARDS["f3a1"], dtype=torch.float32)
    advantages, _ = compute_grpo_outcome_advantage(rewards, torch.ones(8, 2), ["u"] * 8)
    high, low = advantages[:, 0].max(), advantages[:, 0].min()
    assert board(view)["f3a1"]["adv to come"] == f"{high:+.2f} / {low:+.2f}" == "+0.72 / -1.21"


@pytest.mark.parametrize(
    ("uid", "size", "remark"),
    [
        ("f3a1", "8/8", ""),
        ("9c02", "8/8", "no signal: all equal"),
        ("77be", "5/8", "3 sessions missing (2, 4, 5)"),
        ("0d4f", "1/8", "single row: advantage is the raw reward"),
        ("55aa", "8/8", "NaN reward on 55aa_0_0: the whole group becomes NaN"),
    ],
)
def test_remarks(view: View, uid: str, size: str, remark: str) -> None:
    assert board(view)[uid]["size"] == size and board(view)[uid]["remark"] == remark


def test_sessions_are_in_order_with_holes(view: View) -> None:
    assert board(view)["77be"]["sessions (reward)"].split() == ["[1]", "[0]", "-", "[1]", "-", "-", "[0]", "[1]"]


def test_equal_rewards_give_no_signal_whatever_the_rounding(view: View) -> None:
    """The std of eight times 0.1 is not exactly zero in floating point."""
    assert board(view)["9c02"]["adv to come"] == "0"


def test_advantages_in_the_queue_are_shown_as_used() -> None:
    tq = board_queue({"f3a1": [1, 0]}, {"f3a1": [0.25, -0.5]})
    assert board(group_board(tq))["f3a1"]["adv used"] == "+0.25 / -0.50"


def test_last_output_of_a_session_counts() -> None:
    tq = board_queue({"f3a1": [1, 0]})
    put_row(tq, "f3a1_1_1", 0.5, length=7)
    line = board(group_board(tq))["f3a1"]
    assert line["sessions (reward)"] == "[1] [0.5]x2" and line["mean"] == "0.750" and line["length"] == "4..7"
    assert line["remark"] == "of several outputs the last counts"


def test_padding_and_waiting_prompts_are_no_groups() -> None:
    tq = board_queue({"f3a1": [1, 0]})
    put_row(tq, "pad77_0_0", 0.0, is_padding=True)
    tq.kv_batch_put(["f3a1", "eeee"], "train", tags=[marker("finished"), marker("pending")])
    view = group_board(tq, n=2)
    lines = board(view)
    assert [*lines] == ["f3a1", "eeee", "pad77"]
    assert lines["pad77"]["remark"] == "padding: in no group" and lines["eeee"]["remark"] == "no row yet"
    assert {uid: line["state"] for uid, line in lines.items()} == {
        "f3a1": "finished",
        "eeee": "pending",
        "pad77": "padding",
    }
    assert "1 of 1 group teach something" in view.text() and "1 padding row" in view.text()
    assert [*board(group_board(tq, status="pending"))] == ["eeee"]


def test_row_without_reward_is_named_and_the_others_still_read() -> None:
    tq = board_queue({"f3a1": [1, 0]})
    put_row(tq, "f3a1_2_0", None)
    line = board(group_board(tq))["f3a1"]
    assert line["sessions (reward)"] == "[1] [0] [?]" and line["remark"] == "no rm_scores on f3a1_2_0"


def test_sessions_per_prompt_come_from_the_config() -> None:
    config = {"actor_rollout_ref": {"rollout": {"n": 4}}}
    assert board(group_board(board_queue({"f3a1": [1, 0]}), config=config))["f3a1"]["size"] == "2/4"
    assert board(group_board(board_queue({"f3a1": [1, 0]})))["f3a1"]["size"] == "2"


def test_snapshot_has_no_values_and_says_so() -> None:
    view = group_board(take_snapshot(board_queue({"f3a1": [1, 0]})), n=2)
    assert "no group has a reward yet" in view.text()
    assert "a snapshot holds no values: pass the queue" in view.text()
    assert board(view)["f3a1"]["size"] == "2/2" and board(view)["f3a1"]["sessions (reward)"] == "[?] [?]"


def test_batch_limits_the_board() -> None:
    tq = board_queue({"f3a1": [1, 0], "9c02": [1, 0]})
    view = group_board(tq, batch=KVBatchMeta(["9c02_0_0", "dead_0_0"], [{}, {}], "train"))
    assert [*board(view)] == ["9c02"] and "1 key of the batch not in the queue" in view.text()


def test_infinite_rewards_are_shown_and_stop_nothing() -> None:
    line = board(group_board(board_queue({"f3a1": [math.inf, -math.inf, 1], "9c02": [1e200, 0, 0]})))["f3a1"]
    assert (line["mean"], line["std"]) == ("-", "-") and "[inf] [-inf] [1]" in line["sessions (reward)"]


def test_many_groups_are_counted_and_those_that_fit_are_made() -> None:
    view = group_board(board_queue({f"u{i}": [1, 0] for i in range(1500)}))
    assert "1500 of 1,500 groups teach something" in view.headline
    assert "of 1,500 uids because" in view.text(300) and len(view.model.tables[0].rows) < 1000


def test_rows_cleared_while_they_are_read_do_not_shift_rewards() -> None:
    """A get that comes back shorter than asked must not be matched to keys by position."""
    tq = board_queue({"f3a1": [1, 0, 0]})

    class Racing:
        snapshot = tq.snapshot

        def kv_batch_get(self, **request: object) -> object:
            tq.kv_clear(["f3a1_0_0"], "train")
            return tq.kv_batch_get(**request)  # type: ignore[arg-type]

    view = group_board(Racing())  # type: ignore[arg-type]
    assert board(view)["f3a1"]["sessions (reward)"] == "[?] [?] [?]"
    assert "rows changed while they were read; not shown: rm_scores, response_mask" in view.text(200)


def sampler_config(strategy: str = "drop", filtered: bool = False) -> dict[str, object]:
    sampler = {"max_off_policy_threshold": 3, "max_off_policy_strategy": strategy}
    return {
        "trainer": {"v1": {"trainer_mode": "colocate_async", "sampler": sampler}},
        "algorithm": {"filter_groups": {"enable": filtered, "metric": "reward"}},
    }


def test_groups_that_the_sampler_will_drop_are_marked() -> None:
    tq = board_queue({"aaaa": [1, 0], "bbbb": [1, 1], "cccc": [0, 0]})
    for uid, status, step in (("aaaa", "finished", 2), ("bbbb", "finished", 4), ("cccc", "running", 4)):
        tq.kv_put(uid, "train", None, {"is_prompt": True, "status": status, "global_steps": step})

    def remark(view: View, uid: str) -> str:
        (row,) = [row for row in view.model.tables[0].rows if str(row[0]) == uid]
        return str(row[6])

    view = group_board(tq, 2, sampler_config(filtered=True), global_steps=6)
    assert remark(view, "aaaa") == "stale: spans 5 weight versions, dropped"
    assert remark(view, "bbbb") == "no signal: all equal (filtered by DAPO at the next sample)"
    assert remark(view, "cccc") == "no signal: all equal", "a running group may still change"
    assert "1 filtered by DAPO" in view.headline and "1 stale" in view.headline
    plain = group_board(tq, 2, sampler_config(), global_steps=6)
    assert remark(plain, "bbbb") == "no signal: all equal" and "DAPO" not in plain.headline
    waiting = group_board(tq, 2, sampler_config("wait"), global_steps=6)
    assert remark(waiting, "cccc") == "no signal: all equal; stale: spans 3 weight versions, holds sampling back"
    assert "stale" not in group_board(tq, 2, sampler_config()).text(300), "nobody said which step it is"
    assert_same_facts(view)
