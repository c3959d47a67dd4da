"""Looking twice at a queue that moves: what is gone at the second look, or only slow, is not reported."""

from __future__ import annotations

from typing import Any

import pytest

from kitlib.inspector.doctor import live
from kitlib.inspector.doctor.live import look_twice
from kitlib.transfer_queue import TransferQueue

from .cases import put
from .healthy import markers_of, rows_of, state


def looked_at(raw: dict[str, Any], between: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Kinds above info of two looks (three, if need be); `between` gets the queue and the number of the pause."""
    tq = TransferQueue()
    put(raw, tq)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        between(tq, len(pauses))

    monkeypatch.setattr(live, "sleep", sleep)
    return {one.kind for one in look_twice(tq) if one.severity != "info"}


def unfinished() -> dict[str, Any]:
    """One of four prompts still runs, and one of its sessions has no row."""
    raw = state("sample", 4, 4, seed=3)
    marker = markers_of(raw)[1]
    marker["tag"]["status"] = "running"
    raw["partitions"]["train"].remove(next(row for row in rows_of(raw) if row["key"].startswith(marker["key"])))
    return raw


def test_a_prompt_that_finishes_meanwhile_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = state("sample", 4, 4, seed=3)
    marker = markers_of(raw)[1]
    marker["tag"]["status"] = "running"

    def finish(tq: TransferQueue, pause: int) -> None:
        tq.kv_put(key=marker["key"], partition_id="train", tag={"status": "finished"})

    assert not looked_at(raw, finish, monkeypatch)
    assert looked_at(raw, lambda tq, pause: None, monkeypatch) == {"stuck_prompt"}


def test_a_slow_session_gets_a_third_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_row_comes(tq: TransferQueue, pause: int) -> None:
        if pause == 2:
            tq.kv_put(key="0123456_0_0", partition_id="train", tag={"status": "success"})

    assert "stuck_prompt" in looked_at(unfinished(), lambda tq, pause: None, monkeypatch)
    assert "stuck_prompt" not in looked_at(unfinished(), a_row_comes, monkeypatch)


def test_the_stage_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in ("sample", "old_log_prob", "advantage", "update_actor", "validate"):
        assert not looked_at(state(stage, 3, 4, seed=1), lambda tq, pause: None, monkeypatch), stage


def test_a_batch_that_is_trained_beside_the_next_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, coming = state("advantage", 3, 4, seed=1), state("sample", 3, 4, seed=2)
    raw["partitions"]["train"] += coming["partitions"]["train"]
    assert not looked_at(raw, lambda tq, pause: None, monkeypatch)
    del rows_of(raw)[2]["fields"]["rm_scores"]
    assert looked_at(raw, lambda tq, pause: None, monkeypatch) == {"field_missing"}


def test_the_row_of_a_ghost_is_no_short_group_of_the_running_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step cleared them, then a late session wrote one row and the status again."""
    raw, late = state("advantage", 3, 4, seed=1), state("advantage", 1, 4, seed=9)
    row = rows_of(late)[0]
    uid = row["key"].split("_")[0]
    ghost = {"key": uid, "tag": {"status": "finished"}, "fields": {}, "how": "late_tag"}
    raw["partitions"]["train"] += [row, ghost]
    kinds = looked_at(raw, lambda tq, pause: None, monkeypatch)
    assert "ghost_key" in kinds
    assert "short_group" not in kinds
