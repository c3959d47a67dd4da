"""The lessons of notebook 10: what is measured on a time line, what a run calls, and checks that name the mistake."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kitlib.config import load_config
from kitlib.inspector.timeline import Span, Timeline
from kitlib.lessons import Answer
from kitlib.lessons.fit_four_ways import (
    CallLog,
    ModeRun,
    PressCtrlC,
    RewardCurve,
    Script,
    SlowRun,
    Staleness,
    check_bound,
    check_modes,
    check_num_prompts,
    check_order_of_calls,
    pace_table,
    run_mode,
)
from kitlib.lessons.fit_four_ways.calls import Call
from kitlib.trainer.task_runner import TaskRunner
from kitlib.transfer_queue import TransferQueue

TINY = (
    *("data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=2"),
    *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.logger=[]", "data.max_response_length=256"),
)
FAST = Script(step=2e-4, row=0, train_row=1e-3, sync=0)


def said(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


def a_run(*spans: tuple[str, Any, float, float], stale: float = 0.0) -> ModeRun:
    staleness = Staleness()
    staleness.means, staleness.worst = [stale], [stale]
    ranks = [("rank-0", *rest) for lane, *rest in spans if (lane, rest[0]) == ("driver", "work")]
    made = [Span(lane, kind, kind, began, ended, 1) for lane, kind, began, ended in (*spans, *ranks)]
    return ModeRun(Timeline("made up", tuple(made)), staleness)


SERIAL = a_run(
    ("driver", "wait", 0, 2), ("server-0", "request", 0, 2), ("driver", "work", 2, 4), ("driver", "sync", 4, 4.5)
)
PARTIAL = a_run(("driver", "wait", 0, 1), ("server-0", "request", 0, 1.1), ("driver", "work", 1.2, 4), stale=1)
BESIDE = a_run(("driver", "wait", 0, 1), ("server-0", "request", 0, 3.5), ("driver", "work", 1, 4), stale=1)
RUNS = {"v0": SERIAL, "sync": SERIAL, "colocate_async": PARTIAL, "separate_async": BESIDE}
PAUSES, WAITS = {"v0", "sync", "colocate_async"}, {"v0", "sync"}


def test_overlap_and_requests_in_flight() -> None:
    assert (SERIAL.overlap, SERIAL.num_in_flight) == (0, 0)
    assert (BESIDE.overlap, BESIDE.overlap_share) == (pytest.approx(2.5), pytest.approx(2.5 / 3))
    assert BESIDE.num_in_flight == PARTIAL.num_in_flight == 1
    two = a_run(("driver", "work", 0, 2), ("server-0", "request", 1, 3), ("server-0", "request", 1.5, 4))
    assert two.overlap == pytest.approx(1)  # two requests at once are one busy server


def test_the_pace_is_beside_the_first_run() -> None:
    text = pace_table({"serial": SERIAL, "beside": BESIDE}, num_steps=1).text()
    assert "the bound is 1.80" in text  # 2.5 s of work and 2 s of decoding
    assert "4.50" in text  # seconds a step of the first
    assert "1.12" in text  # 4.5 / 4


class TestCheckModes:
    def test_right(self) -> None:
        assert check_modes(PAUSES, WAITS, RUNS).ok is True
        assert check_modes(..., WAITS, RUNS).ok is None

    @pytest.mark.parametrize(
        ("pauses", "waits", "mistake"),
        [
            (PAUSES | {"separate_async"}, WAITS, "separate_async: here the server has decoded for 2.5 s"),
            ({"v0", "sync"}, WAITS, "pauses: 1 name still missing from your answer: where trainer and server share"),
            (PAUSES, WAITS | {"colocate_async"}, "waits: colocate_async: when its batch was complete, 1.0 requests"),
            (PAUSES, {"v0"}, "waits: 1 name still missing from your answer: without a window of prompts"),
            (PAUSES, {"v0", "async"}, "async does not belong here"),
            ("v0", WAITS, "pauses: the answer is a set of names"),
        ],
    )
    def test_wrong(self, pauses: Any, waits: Any, mistake: str) -> None:
        assert mistake in said(check_modes(pauses, waits, RUNS))


class TestCheckBound:
    def test_right(self) -> None:
        assert check_bound(1.67, 3, 2).ok is True
        assert check_bound(5 / 3, 2, 3).ok is True
        assert check_bound(..., 3, 2).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            (2, "only if both times are equal"),
            (4.0, "these are the seconds of a step"),
            (5, "not 5: "),
            (0.8, "upside down"),
            (1.1, "too small"),
            ("1.25", "the answer is a number"),
        ],
    )
    def test_wrong(self, answer: Any, mistake: str) -> None:
        assert mistake in said(check_bound(answer, 4, 1))

    def test_seconds_are_no_speed_up(self) -> None:
        assert "compare with doing one after the other" in said(check_bound(6 / 3.5, 6, 3.5))
        assert "these are the seconds of a step" in said(check_bound(6, 6, 3.5))
        assert "these are the seconds of the serial step" in said(check_bound(9.5, 6, 3.5))
        assert "nobody is done before the SLOWER" in said(check_bound(9.5 / 3.5, 6, 3.5))


class TestCheckNumPrompts:
    @pytest.fixture
    def trainer(self) -> Any:
        """Six prompts of the warm-up and four of the step, and the first rows of one of them."""
        tq = TransferQueue()
        uids = [f"u{number}" for number in range(10)]
        tq.kv_batch_put(uids, "train", tags=[{"is_prompt": True, "status": "running"} for _ in uids])
        tq.kv_batch_put(["u0_0_0", "u0_1_0"], "train", tags=[{"status": "success"}] * 2)
        rollout, data = SimpleNamespace(n=4), SimpleNamespace(train_batch_size=4)
        config = SimpleNamespace(data=data, actor_rollout_ref=SimpleNamespace(rollout=rollout))
        return SimpleNamespace(tq=tq, config=config)

    def test_right(self, trainer: Any) -> None:
        assert check_num_prompts(10, trainer).ok is True
        assert check_num_prompts(..., trainer).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            (4, "these are the prompts of the step"),
            (6, "these are the prompts of the warm-up"),
            (40, "these are answers"),
            (8, "a fraction of a batch counts"),
            (12, "are not rounded up to 2"),
            (11, "one too many"),
        ],
    )
    def test_wrong(self, trainer: Any, answer: int, mistake: str) -> None:
        assert mistake in said(check_num_prompts(answer, trainer))


class TestSlowRun:
    slow = SlowRun(SERIAL, "num_warmup_batches")

    def test_right(self) -> None:
        assert self.slow.check("num_warmup_batches").ok is True
        assert self.slow.check(["trainer.v1.separate_async.num_warmup_batches=0"]).ok is True
        assert self.slow.check(...).ok is None

    @pytest.mark.parametrize(
        ("answer", "mistake"),
        [
            ("trainer_mode", "in sync mode the server is never busy while the trainer computes"),
            ("parameter_sync_step", "the weight syncs take 0.50 s of 4.5 s"),
            ("max_off_policy_threshold", "by throwing groups away: 0 here"),
            ("lr", "'lr' is none of"),
            (None, "'None' is none of"),
        ],
    )
    def test_wrong(self, answer: str, mistake: str) -> None:
        assert mistake in said(self.slow.check(answer))


ORDER = [
    "submit_batch_to_rollout",
    "sample",
    "on_sample_end",
    "update_actor",
    "on_step_end",
    "compute_metrics",
    "clear",
]


class TestCheckOrder:
    calls = CallLog()
    calls.calls += [Call(1, 0, "stage", name) for name in (*ORDER[:3], "balance_batch", *ORDER[3:])]

    def swapped(self, first: str, second: str) -> list[str]:
        """The order with two neighbours the wrong way round."""
        order = list(ORDER)
        i = order.index(first)
        assert order[i + 1] == second
        order[i : i + 2] = [second, first]
        return order

    def test_right(self) -> None:
        assert check_order_of_calls(ORDER, self.calls).ok is True
        assert check_order_of_calls(np.array([f" {name}()" for name in ORDER]), self.calls).ok is True
        assert check_order_of_calls(..., self.calls).ok is None
        assert check_order_of_calls([..., *ORDER[1:]], self.calls).ok is None

    @pytest.mark.parametrize(
        ("first", "second", "why"),
        [
            ("submit_batch_to_rollout", "sample", "what was not submitted cannot be sampled"),
            ("on_sample_end", "update_actor", "the servers must be asleep"),
            ("update_actor", "on_step_end", "and there are none yet"),
            ("on_step_end", "compute_metrics", "the numbers come after its clock"),
            ("compute_metrics", "clear", "metrics read the rows that clear removes"),
        ],
    )
    def test_wrong(self, first: str, second: str, why: str) -> None:
        assert why in said(check_order_of_calls(self.swapped(first, second), self.calls))

    def test_names(self) -> None:
        assert "1 name still missing" in said(check_order_of_calls(ORDER[1:], self.calls))
        for no_list in (set(ORDER), None, [1, 2], "clear"):
            assert "a list of names in their order" in said(check_order_of_calls(no_list, self.calls))
        assert "did you mean clear" in said(check_order_of_calls([*ORDER[:-1], "clears"], self.calls))


def test_a_real_run_tells_its_calls_and_its_rewards_and_ctrl_c_leaves_nothing() -> None:
    calls, curve = CallLog(), RewardCurve()
    with pytest.raises(KeyboardInterrupt, match="in step 2"):
        TaskRunner().run(load_config(TINY), observers=[calls, curve, PressCtrlC(step=2)])
    assert check_order_of_calls(ORDER, calls).ok is True
    text = calls.text(step=1).splitlines()
    assert text[0] == "hook     on_train_begin"
    assert text[text.index("hook     on_sample_end") + 1] == "servers      sleep_replicas"
    assert text[text.index("hook     on_step_end") + 1] == "stage        update_weights"
    assert not calls.of_step(2)
    assert len(curve.rewards) == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kitlib")]


def test_a_scripted_run_has_a_time_line_and_the_ages_of_its_rows() -> None:
    run = run_mode([*TINY, "trainer.total_training_steps=2"], FAST, title="mine")
    assert run.timeline.title == "mine"
    assert run.timeline.lanes == ("driver", "rank-0", "server-0")
    assert run.staleness.worst == [0, 0]
    assert 0 < run.steps(2, 2).timeline.seconds < run.timeline.seconds
