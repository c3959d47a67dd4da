"""The conversation with the browser: what it holds is what the queue holds, whatever happened in between."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kitlib.inspector import UnknownStageError, open_recording, record
from kitlib.inspector.widgets import pace
from kitlib.inspector.widgets.desk import Desk
from kitlib.inspector.widgets.feed import Feed
from kitlib.inspector.widgets.panels import Panels
from kitlib.inspector.widgets.requests import Requests
from kitlib.paths import data_path
from kitlib.replay_buffer.waiting import WaitReport
from kitlib.transfer_queue import QueueSnapshot, TransferQueue, acting_as, take_snapshot, watch
from tests.inspector.queues import board_queue, marker, tag
from tests.inspector.widgets.browser import Browser


class Blind:
    """A queue without a change feed, such as the package on Ray."""

    def __init__(self, tq: TransferQueue) -> None:
        self.tq = tq

    def snapshot(self, partition_id: str | None = None) -> QueueSnapshot:
        return self.tq.snapshot(partition_id)


def desk_of(source: Any, **more: Any) -> tuple[Desk, Browser]:
    browser = Browser()
    desk = Desk(Feed.of(source, more.pop("history", None)), browser, Panels(), **more)
    desk.open()
    return desk, browser


def rows_of(tq: TransferQueue, partition_id: str = "train") -> dict[str, set[str]]:
    part = take_snapshot(tq).partitions[partition_id]
    return {key: set(part.fields_of(key)) for key in part.keys}


def names_and_fields(browser: Browser) -> list[tuple[str, set[str]]]:
    return [(name, fields) for name, (fields, _, _) in browser.shown().items()]


KEYS = [f"{uid}_{session}_0" for uid in "ab" for session in range(3)] + ["a", "ghost"]
PUT = st.tuples(st.just("put"), st.sampled_from(KEYS), st.sampled_from(["", "x", "y", "z"]), st.integers(1, 2))
OTHER = st.tuples(st.sampled_from(["clear", "look"]), st.sampled_from(KEYS), st.just(""), st.just(0))


@settings(max_examples=80, deadline=None)
@given(actions=st.lists(st.one_of(PUT, OTHER), max_size=40), with_feed=st.booleans())
def test_the_browser_holds_what_the_queue_holds(actions: list[Any], with_feed: bool) -> None:
    tq = TransferQueue()
    desk, browser = desk_of(tq if with_feed else Blind(tq))
    for verb, key, field, length in [*actions, ("look", "", "", 0)]:
        if verb == "put":
            tags = marker("running") if key == "a" else tag(f"s{length}")
            tq.kv_put(key, "train", {field: torch.ones(length)} if field else None, tags)
        elif verb == "clear":
            tq.kv_clear([key], "train")
        else:
            assert desk.look(changed=True)
            there = rows_of(tq) if "train" in take_snapshot(tq).partitions else {}
            assert names_and_fields(browser) == list(there.items())
    kinds = {name: kind for name, (_, kind, _) in browser.shown().items()}
    assert {kind for name, kind in kinds.items() if name == "a"} <= {2}
    assert {kind for name, kind in kinds.items() if "_" in name} <= {0}
    statuses = {name: status for name, (_, _, status) in browser.shown().items()}
    assert statuses == {key: tags["status"] for key, tags in tq.kv_list("train").get("train", {}).items()}
    assert browser.lost == 0


def test_a_look_sends_what_changed_and_nothing_when_nothing_did(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: now[0]))
    tq = board_queue({f"u{i}": [1.0, 0.0, 1.0] for i in range(300)})
    desk, browser = desk_of(tq)
    tq.kv_put("u7_1_0", "train", {"advantages": torch.ones(4)})
    desk.look(changed=True)
    assert browser.num_whole == 2, "a field that was never seen needs a column"
    tq.kv_put("u8_1_0", "train", {"advantages": torch.ones(4)})
    tq.kv_clear(["u9_0_0"], "train")
    desk.look(changed=True)
    assert (browser.num_whole, browser.num_deltas, browser.num_bytes) == (2, 1, 4 + 4 + 1)
    desk.look(changed=False)
    desk.look(changed=True)
    assert browser.num_deltas == 1
    now[0] += 10
    desk.look(changed=False)
    assert (browser.num_deltas, browser.num_bytes) == (2, 9), "the verdict follows once its time has come"


def test_an_overwrite_with_another_shape_is_told() -> None:
    tq = board_queue({"a": [1.0]})
    desk, browser = desk_of(tq)
    tq.kv_put("a_0_0", "train", {"responses": torch.ones(9)})
    desk.look(changed=True)
    assert browser.num_bytes == 4 + 1


def test_names_are_printable_and_lead_back_to_their_row() -> None:
    tq, evil = TransferQueue(), "a\nb\x1b[31m\\_0_0"
    tq.kv_put(evil, "train", {"responses": torch.ones(2)}, tag())
    desk, browser = desk_of(tq)
    assert browser.names == ["a\\nb\\x1b[31m\\\\_0_0"]
    ask(desk, "detail", row=browser.names[0], field="responses", values=False)
    assert ("holds", "float32 J[2], 8 bytes") in browser.replies[-1]["facts"]


def ask(desk: Desk, kind: str, **more: Any) -> None:
    Requests(desk).handle({"kind": kind, "view": "v", **more})


def facts(browser: Browser) -> dict[str, str]:
    return dict(browser.replies[-1]["facts"])


def test_a_click_tells_shape_writer_tags_and_on_request_values() -> None:
    tq = watch(TransferQueue())
    with acting_as(stage="generate_sequences", worker="3"):
        tq.kv_put("a_0_0", "train", {"responses": torch.arange(40), "text": "<b>\x1b"}, tag())
    desk, browser = desk_of(tq)
    ask(desk, "detail", row="a_0_0", field="responses", values=False)
    said = facts(browser)
    assert said["holds"] == "int64 J[40], 320 bytes"
    assert said["written"].startswith("by generate_sequences (3), ")
    assert said["tags"].startswith("success  len 11+20")
    ask(desk, "detail", row="a_0_0", field="responses", values=True)
    assert facts(browser)["values"].startswith("0 1 2") and ".. 32" in facts(browser)["values"]
    ask(desk, "detail", row="a_0_0", field="text", values=True)
    assert facts(browser)["value"] == "<b>\\x1b"
    assert tq.log.events()[-1].who == {"stage": "inspector"}
    ask(desk, "detail", row="a_0_0", field="returns", values=False)
    assert facts(browser)["holds"] == "absent"
    tq.kv_clear(["a_0_0"], "train")
    ask(desk, "detail", row="a_0_0", field="responses", values=True)
    assert facts(browser)["value"].startswith("cannot be read: ")
    desk.look(changed=True)
    ask(desk, "detail", row="a_0_0", field="responses", values=False)
    assert "gone" in facts(browser)


def test_token_values_are_text_where_the_config_names_a_model() -> None:
    tq = TransferQueue()
    tq.kv_put("a_0_0", "train", {"responses": torch.tensor([9, 14, 10]), "rm_scores": torch.ones(3)}, tag())
    desk, browser = desk_of(tq, config={"actor_rollout_ref": {"model": {"path": data_path("models/mult_tool")}}})
    ask(desk, "detail", row="a_0_0", field="responses", values=True)
    assert facts(browser)["text"] == "<tool_call>1</tool_call>"
    ask(desk, "detail", row="a_0_0", field="rm_scores", values=True)
    assert "text" not in facts(browser)


def test_a_recording_is_walked_through_with_labels_writers_and_recorded_values(tmp_path: Path) -> None:
    recorder = record(TransferQueue(), tmp_path / "run", values=["rm_scores"], tick=60)
    with acting_as(stage="generate_sequences"):
        recorder.tq.kv_put("a_0_0", "train", {"rm_scores": torch.tensor([0.0, 1.0]), "responses": torch.ones(2)}, tag())
    recorder.mark("generate_sequences", step=1)
    recorder.tq.kv_put("b_0_0", "train", {"rm_scores": torch.tensor([0.5])}, tag())
    recorder.mark("sample", step=1)
    recorder.close()
    desk, browser = desk_of(open_recording(tmp_path / "run"))
    assert (browser.names, browser.frame["moments"]) == (["a_0_0", "b_0_0"], 2)
    ask(desk, "moment", at=0)
    assert (browser.names, browser.frame["label"]) == (["a_0_0"], "step 1 after generate_sequences")
    ask(desk, "detail", row="a_0_0", field="rm_scores", values=False)
    assert facts(browser)["written"].startswith("by generate_sequences, ")
    ask(desk, "detail", row="a_0_0", field="rm_scores", values=True)
    assert facts(browser)["values"].startswith("0 1  (2 values)")
    ask(desk, "detail", row="a_0_0", field="responses", values=True)
    assert list(facts(browser)) == ["value"]  # it was not recorded


def test_the_writer_by_contract_where_nobody_recorded() -> None:
    desk, browser = desk_of(board_queue({"a": [1.0]}))
    ask(desk, "detail", row="a_0_0", field="rm_scores", values=False)
    assert facts(browser)["written"].startswith("by generate_sequences or compute_reward_colocate (the contract")
    assert facts(browser)["last put"].startswith("to this row by unsigned (MainThread), ")


def test_a_view_that_missed_a_number_gets_everything() -> None:
    desk, browser = desk_of(board_queue({"a": [1.0]}))
    ask(desk, "hello", seq=desk.number)
    assert browser.num_whole == 1
    ask(desk, "hello", seq=desk.number - 1)
    ask(desk, "resync")
    assert browser.num_whole == 3
    ask(desk, "no such request")
    assert browser.num_whole == 3


def test_partition_stage_and_moment_are_chosen_by_request() -> None:
    tq = board_queue({"a": [1.0]})
    early = take_snapshot(tq)
    tq.kv_put("b_0_0", "val", {"responses": torch.ones(1)}, tag())
    desk, browser = desk_of(tq, history=[early])
    ask(desk, "partition", id="val")
    assert browser.names == ["b_0_0"]
    assert browser.frame["partitions"] == [["val", 1], ["train", 1]]
    ask(desk, "partition", id="train")
    ask(desk, "stage", name="compute_advantage")
    assert browser.frame["headline"][0].startswith("NOT READY")
    ask(desk, "stage", name="")
    assert (browser.frame["stage"], browser.frame["headline"][1]) == ("", "GOOD")
    tq.kv_put("c_0_0", "train", {"responses": torch.ones(1)}, tag())
    ask(desk, "moment", at=0)
    assert (browser.names, browser.frame["following"]) == (["a_0_0"], False)
    ask(desk, "moment", at=7)
    ask(desk, "follow", on=True)
    assert browser.names == ["a_0_0", "c_0_0"]
    with pytest.raises(UnknownStageError, match="compute_advantage"):
        desk.show_stage("compute_advantages")


def test_frozen_means_frozen() -> None:
    tq = board_queue({"a": [1.0]})
    desk, browser = desk_of(tq)
    ask(desk, "follow", on=False)
    tq.kv_put("b_0_0", "train", {"responses": torch.ones(1)}, tag())
    desk.look(changed=True)
    assert browser.names == ["a_0_0"]
    assert desk.shown.snapshot.partitions["train"].keys == ("a_0_0",)


def test_a_closed_queue_leaves_its_last_picture() -> None:
    tq = board_queue({"a": [1.0, 0.0]})
    desk, browser = desk_of(tq)
    tq.kv_put("b_0_0", "train", {"responses": torch.ones(1)}, tag())
    desk.look(changed=True)
    tq.close()
    assert desk.look(changed=True) is False
    assert browser.names == ["a_0_0", "a_1_0", "b_0_0"]
    assert "closed" in browser.frame["trouble"]
    last = desk.shown.snapshot.partitions["train"]
    assert (last.keys, last.fields_of("b_0_0")) == (("a_0_0", "a_1_0", "b_0_0"), ("responses",))


def test_a_queue_that_breaks_is_said_in_the_widget() -> None:
    tq = Blind(board_queue({"a": [1.0]}))
    desk, browser = desk_of(tq)
    del tq.tq
    assert desk.look(changed=True) is False
    assert browser.frame["trouble"].startswith("no longer live: AttributeError")


def test_a_recording_tells_what_was_waited_for_at_the_moment_that_is_shown(tmp_path: Path) -> None:
    stuck = WaitReport("sample(train, 2 prompts): 1 of 2 ready", "running 1", (), False, "Not by itself.")
    with record(board_queue({"a": [1.0, 0.0]}), tmp_path / "recording", tick=60) as recorder:
        recorder.mark("submit_batch_to_rollout", 1)
        recorder.waiting = lambda: stuck
        recorder.mark("", 1)
    browser, feed = Browser(), Feed.of(open_recording(tmp_path / "recording"))
    desk = Desk(feed, browser, Panels(None, None, feed.waiting_at))
    desk.open()
    assert browser.frame["panels"] == ["cell", "presence", "groups", "waiting"]
    ask(desk, "panel", name="waiting")
    assert "WILL NOT END BY ITSELF" in browser.panels["waiting"]
    desk.show_moment(0)
    ask(desk, "panel", name="waiting")
    assert "nothing is waiting" in browser.panels["waiting"]


def test_a_report_of_the_replay_buffer_is_shown_as_a_view() -> None:
    stuck = WaitReport("sample(train, 2 prompts): 1 of 2 ready", "running 1", (), False, "Not by itself.")
    browser = Browser()
    desk = Desk(Feed.of(board_queue({"a": [1.0]})), browser, Panels(None, lambda: stuck))
    desk.open()
    ask(desk, "panel", name="waiting")
    assert "kitlib-view" in browser.panels["waiting"] and "WILL NOT END BY ITSELF" in browser.panels["waiting"]


def test_panels_are_made_while_they_are_open() -> None:
    browser = Browser()
    said = iter([None, ValueError("no sampler")])

    def why() -> Any:
        if isinstance(one := next(said), ValueError):
            raise one
        return one

    desk = Desk(Feed.of(board_queue({"a": [1.0, 0.0], "b": [0.0, 0.0]})), browser, Panels(2, why))
    desk.open()
    desk.look(changed=True)
    assert browser.panels == {}
    for name, text in [("groups", "1 of 2 groups teach"), ("presence", "4 rows"), ("waiting", "nothing is waiting")]:
        ask(desk, "panel", name=name)
        assert text in browser.panels[name]
    ask(desk, "panel", name="waiting")
    assert "ValueError: no sampler" in browser.panels["waiting"]
    ask(desk, "bye")
    browser.panels.clear()
    desk.look(changed=True)
    assert browser.panels == {}
