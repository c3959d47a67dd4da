"""The time line: what spans add up to, how they are drawn, and that a run records them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kitlib.inspector import record
from kitlib.inspector.timeline import DRIVER, EmptyTimelineError, Span, Timeline, begins_late, joined, merged
from kitlib.inspector.timeline_svg import draw
from kitlib.inspector.timeline_view import bar, duration, time_line
from kitlib.inspector.trace_export import chrome_trace, save_chrome_trace
from kitlib.rollout import FullyAsyncLLMServerClient, GlobalRequestLoadBalancer, TransformersServer
from kitlib.rollout.request_log import RequestLog, RequestRecord
from kitlib.run.timeline import write_timeline
from kitlib.trainer.task_runner import TaskRunner
from kitlib.trainer.timeline import TimelineRecorder
from kitlib.transfer_queue import TransferQueue
from tests.rollout.conftest import make_model
from tests.trainer.conftest import small_config

T0 = 1_000_000.0  # any moment; what counts is the distance from it


def span(lane: str, kind: Any, name: str, began: float, ended: float, step: int | None = None) -> Span:
    return Span(lane, kind, name, T0 + began, T0 + ended, step)


def two_steps() -> Timeline:
    """Two steps of 5 s: 2 s of waiting, 3 s of training with the sync in it; two servers."""
    spans = []
    for step in (1, 2):
        at = 5.0 * (step - 1)
        spans += [
            span(DRIVER, "wait", "sample", at, at + 2, step),
            span(DRIVER, "work", "update_actor", at + 2, at + 4.5, step),
            span("rank-0", "work", "update_actor", at + 2, at + 4.5, step),
            span(DRIVER, "sync", "update_weights", at + 4.5, at + 5, step),
            span("server-0", "request", f"a{step}", at, at + 2),
            span("server-0", "request", f"b{step}", at, at + 1),
            span("server-1", "request", f"c{step}", at + 0.5, at + 1),
        ]
    return Timeline("sync", tuple(spans))


# What spans add up to


def test_busy_counts_time_once_and_waiting_not_at_all() -> None:
    timeline = two_steps()
    assert timeline.seconds == 10
    assert timeline.busy(DRIVER) == 6  # two times 2.5 s of update and 0.5 s of sync
    assert timeline.busy("server-0") == 4  # b lies inside a
    assert timeline.busy("server-1") == 1
    assert timeline.idle_share(DRIVER) == pytest.approx(0.4)
    assert timeline.idle_share("server-0", "server-1") == pytest.approx(1 - 5 / 20)


def test_the_bound_is_the_slower_side_and_serial_is_both() -> None:
    timeline = two_steps()
    assert (timeline.t_train, timeline.t_gen, timeline.bound) == (6, 4, 6)
    assert timeline.headline == (
        "sync: 10.0 s; serial would be 10.0 s; full overlap 6.0 s; trainer idle 40%, rollout idle 75%"
    )


def test_lanes_are_in_the_order_of_the_work() -> None:
    lanes = ("server-10", "server-2", "rank-1", "driver", "rank-0", "tool")
    timeline = Timeline("x", tuple(span(lane, "work", "w", 0, 1) for lane in lanes))
    assert timeline.lanes == ("driver", "rank-0", "rank-1", "server-2", "server-10", "tool")


def test_overlapping_spans_merge_to_intervals() -> None:
    spans = [span("x", "work", "w", began, ended) for began, ended in ((3, 4), (0, 2), (1, 1.5), (2, 2.5))]
    assert merged(spans) == [(T0, T0 + 2.5), (T0 + 3, T0 + 4)]


def test_load_is_the_mean_number_of_requests_at_once() -> None:
    edges = [T0 + i for i in range(6)]
    assert two_steps().load("server-0", edges) == pytest.approx([2, 1, 0, 0, 0])
    assert two_steps().load("server-1", edges) == pytest.approx([0.5, 0, 0, 0, 0])


def test_a_part_of_a_run_is_cut_at_its_ends() -> None:
    second = two_steps().steps(2, 2)
    assert (second.began, second.ended) == (T0 + 5, T0 + 10)
    assert second.busy(DRIVER) == 3
    middle = two_steps().between(T0 + 1, T0 + 3)
    assert middle.busy("server-0") == 1
    assert middle.busy(DRIVER) == 1
    with pytest.raises(EmptyTimelineError, match="no stage of the steps 7 to 8"):
        two_steps().steps(7, 8)
    with pytest.raises(EmptyTimelineError, match="'nothing' has no span"):
        Timeline("nothing", ())


# The picture


def test_bars_name_stages_and_show_how_many_requests_run() -> None:
    timeline = two_steps()
    assert bar(timeline, DRIVER, 10.0, num_bins=20) == "····UUUUU|····UUUUU|"
    assert bar(timeline, "rank-0", 10.0, num_bins=20) == "    UUUUU     UUUUU "
    assert bar(timeline, "server-0", 10.0, num_bins=20) == "██▄▄      ██▄▄      "
    assert bar(timeline, DRIVER, 20.0, num_bins=20) == "··UU|··UU|          "  # half of a longer axis


class Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.titles: list[str] = []
        self.elements: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)


def test_the_page_is_one_element_with_a_drawing_and_the_same_numbers() -> None:
    view = time_line(two_steps())
    page = Page(view.html())
    assert page.open == []
    assert page.elements[0] == "div"
    assert page.elements.count("svg") == 1
    assert not {"script", "style", "link", "img"} & set(page.elements)
    assert "server-0: up to 2 requests at once" in page.titles
    assert "update_actor: 5.00 s in 2 spans" in page.titles
    assert view.headline.startswith("sync: 10.0 s")
    for text in (view.text(), view.html()):
        assert two_steps().headline in text
        assert all(number in text for number in ("6.0", "40%", "4.0", "60%", "1.0", "90%"))


def test_several_runs_share_an_axis() -> None:
    short = two_steps().steps(1, 1)
    text = time_line([two_steps(), short]).text(120)
    assert text.startswith("2 runs on one axis of 10.0 s")
    assert text.count("0 to 10.0 s") == 2
    drivers = [line for line in text.splitlines() if line.startswith("driver")]
    assert drivers[0].count("U") == 2 * drivers[1].count("U")


def resumed(gap: float = 36_000.0) -> Timeline:
    """Step 1, a night, step 2."""
    second = two_steps().steps(2, 2)
    moved = [replace(one, started=one.started + gap, ended=one.ended + gap) for one in second.spans]
    return joined([Timeline("sync", tuple(moved)), two_steps().steps(1, 1)])


def test_parts_of_a_run_are_one_picture_and_the_restart_counts_for_nothing() -> None:
    timeline = resumed()
    assert (timeline.seconds, timeline.extent) == pytest.approx((10, 10.5))
    assert [timeline.busy(lane) for lane in timeline.lanes] == pytest.approx([6, 5, 4, 1])
    assert timeline.idle_share(DRIVER) == pytest.approx(0.4)
    assert timeline.pauses[0].seconds == 36_000
    assert timeline.headline.startswith("sync: 10.0 s in 2 parts; serial would be 10.0 s; full overlap 6.0 s")
    assert bar(timeline, DRIVER, 10.5, num_bins=21) == "····UUUUU|/····UUUUU|"
    assert bar(timeline, "server-0", 10.5, num_bins=21) == "██▄▄      /██▄▄      "
    assert joined([two_steps()]) == two_steps()
    often = joined([two_steps().steps(1, 1) for _ in range(101)])
    assert often.extent == pytest.approx(1.25 * often.seconds), "many restarts leave room for the run"
    assert timeline.between(timeline.began, timeline.began + 4).pauses == ()


def test_the_restart_is_seen_and_told() -> None:
    view = time_line(resumed())
    for said in (view.text(), view.html()):
        assert "part 2 began 10 h 0 min after part 1 ended" in said
    assert "/ restart" in " ".join(view.text().split()) and "/ restart" not in time_line(two_steps()).text(400)
    page = Page(view.html())
    assert "down 36000.0 s" in page.titles and "// restart" in view.html()
    idle = re.findall(r'd="(M[^"]*)" stroke="currentColor" opacity', view.html())
    assert len(idle) == 4 and all(path.count("M") == 2 for path in idle), "no line of idle time where the run was down"
    assert [duration(seconds) for seconds in (3.25, 184, 36_184)] == ["3.2 s", "3 min 4 s", "10 h 3 min"]
    names = [event["name"] for event in chrome_trace(resumed())["traceEvents"]]
    assert "restart after 36000.0 s" in names


def test_a_run_whose_first_part_nobody_kept() -> None:
    assert begins_late(two_steps()) == ""
    assert begins_late(two_steps().steps(2, 2)) == "begins at step 2: the part before it was not recorded"


def test_a_name_cannot_break_the_page() -> None:
    nasty = "<script>alert(1)</script>\x1b"
    timeline = Timeline(nasty, (span(nasty, "work", nasty, 0, 1),))
    view = time_line(timeline)
    assert "<script" not in view.html()
    assert "\x1b" not in view.html() + view.text()


def test_a_long_run_stays_within_its_budget() -> None:
    spans = [span(DRIVER, "work", "update_actor", i, i + 0.5, i) for i in range(2000)]
    spans += [span(f"server-{lane}", "request", str(i), i, i + 0.7) for i in range(2000) for lane in range(4)]
    timeline = Timeline("long", tuple(spans))
    assert len(time_line(timeline, budget=40_000).html().encode()) <= 40_000
    assert len(draw([timeline], timeline.seconds, 5_000)) < len(draw([timeline], timeline.seconds, 1_000_000))


# The trace


def test_the_trace_has_every_span_and_no_overlap_on_a_row(tmp_path: Path) -> None:
    timeline = two_steps()
    path = save_chrome_trace(timeline, tmp_path / "trace.json")
    trace = json.loads(path.read_text())
    assert trace == json.loads(json.dumps(chrome_trace(timeline)))
    events = trace["traceEvents"]
    boxes = [event for event in events if event["ph"] == "X"]
    assert len(boxes) == len(timeline.spans)
    lanes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(lanes.values()) == list(timeline.lanes)
    assert len([event for event in events if event["ph"] == "i"]) == 2
    first = next(event for event in boxes if event["name"] == "a1")
    assert (lanes[first["pid"]], first["ts"], first["dur"]) == ("server-0", 0, 2e6)
    for pid in lanes:
        rows: dict[int, float] = {}
        for event in sorted((e for e in boxes if e["pid"] == pid), key=lambda e: e["ts"]):
            assert event["ts"] >= rows.get(event["tid"], 0)
            rows[event["tid"]] = event["ts"] + event["dur"]


def test_a_stage_inside_another_stays_on_its_row() -> None:
    spans = (span(DRIVER, "wait", "sample", 0, 4), span(DRIVER, "work", "submit_batch_to_rollout", 1, 2))
    boxes = [event for event in chrome_trace(Timeline("x", spans))["traceEvents"] if event["ph"] == "X"]
    assert {event["tid"] for event in boxes} == {1}


# Recording


@pytest.mark.parametrize(
    "overrides",
    [
        {"trainer__use_v1": False},
        {},
        {"trainer__v1__trainer_mode": "colocate_async"},
        {
            "trainer__v1__trainer_mode": "separate_async",
            "trainer__v1__separate_async__parameter_sync_step": 2,
            "actor_rollout_ref__actor__ppo_mini_batch_size": 2,
            "actor_rollout_ref__rollout__checkpoint_engine__backend": "local",
        },
    ],
    ids=["v0", "sync", "colocate_async", "separate_async"],
)
def test_every_mode_leaves_a_time_line(overrides: dict[str, Any]) -> None:
    recorder = TimelineRecorder()
    TaskRunner().run(
        small_config(trainer__test_freq=-1, trainer__val_before_train=False, **overrides), observers=[recorder]
    )
    timeline = recorder.timeline()
    assert timeline.title == (
        "v0" if overrides.get("trainer__use_v1") is False else overrides.get("trainer__v1__trainer_mode", "sync")
    )
    assert timeline.lanes == ("driver", "rank-0", "server-0")
    assert len(timeline.syncs()) == 3  # at the start and after each of two steps
    names = {one.name for one in timeline.of_lane("rank-0")}
    assert "update_actor" in names
    requests = timeline.of_lane("server-0")
    assert len(requests) >= 2 * 16
    assert sum(one.details["tokens"] for one in requests) > 0
    assert 0 < timeline.t_gen < timeline.seconds
    assert 0 < timeline.t_train < timeline.seconds
    if timeline.title in ("v0", "sync"):  # one after the other: no request while the trainer trains
        for update in timeline.of_lane("rank-0"):
            assert not any(one.started < update.ended and one.ended > update.started for one in requests)
    assert recorder.timeline().seconds == timeline.seconds  # it has ended: nothing is added
    assert all(not log.listeners for log in recorder._logs)


class Request:
    """As much of one as a request log looks at."""

    request_id, prompt_ids = "r", (1, 2, 3)


def test_lent_servers_have_lanes_of_their_own() -> None:
    class Server:
        def __init__(self) -> None:
            self.request_log = RequestLog("server-0")

    class Pool:
        def __init__(self, num_servers: int) -> None:
            self.replicas = [Server() for _ in range(num_servers)]

        def get_replicas(self) -> list[Server]:
            return self.replicas

    own, lent = Pool(2), Pool(1)
    workers = SimpleNamespace(dp_size=1)
    trainer: Any = SimpleNamespace(
        parts=SimpleNamespace(llm_server_manager=own),
        hybrid=SimpleNamespace(servers=lent),
        trainer_mode="separate_async",
        actor_rollout_wg=workers,
    )
    recorder = TimelineRecorder()
    recorder.watch(trainer)
    for server in (*own.replicas, *lent.replicas):
        server.request_log.begin([Request()])  # type: ignore[list-item]
    assert recorder.timeline().lanes == ("server-0", "server-1", "hybrid-0")
    assert recorder.timeline().servers == ("server-0", "server-1", "hybrid-0")


def test_a_run_folder_gets_the_picture_and_the_trace(tmp_path: Path) -> None:
    recorder = TimelineRecorder()
    assert write_timeline(recorder, tmp_path) is None
    assert not list(tmp_path.iterdir())
    for one in two_steps().spans:
        recorder._spans.append(one)
    view = write_timeline(recorder, tmp_path)
    assert view is not None
    assert view.html() in (tmp_path / "timeline.html").read_text()
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) > len(two_steps().spans)
    lanes = [line for line in view.text(80).splitlines() if line.startswith(("driver", "rank", "server"))]
    assert len(lanes) == 4  # each with its bar and its numbers: nothing was broken off


def test_the_files_of_a_run_that_went_on_have_its_first_part_too(tmp_path: Path) -> None:
    first, second = two_steps().steps(1, 1), two_steps().steps(2, 2)
    for name, part in (("recording", first), ("recording-1", second)):  # this part is recorded as well
        with record(TransferQueue(), tmp_path / name, tick=60) as one:
            for seen in part.spans:
                one.span(seen)
    recorder = TimelineRecorder()
    for seen in second.spans:
        recorder._spans.append(replace(seen, started=seen.started + 0.5))
    view = write_timeline(recorder, tmp_path)
    assert view is not None and " in 2 parts; " in view.headline
    assert "restart after" in (tmp_path / "trace.json").read_text()
    (tmp_path / "unrecorded").mkdir()
    assert "begins at step 2: the part before it" in str(write_timeline(recorder, tmp_path / "unrecorded"))


def test_a_request_that_still_runs_is_drawn_up_to_now() -> None:
    recorder = TimelineRecorder()
    record = RequestRecord("server-0", "r", T0, 5)
    recorder.on_request(record)
    assert recorder.timeline().spans[0].ended > T0
    record.seconds = 2.0
    recorder.on_request(record)
    assert [one.ended for one in recorder.timeline().spans] == [T0 + 2]


def test_a_server_says_when_a_request_begins_and_how_it_ends() -> None:
    log, heard = RequestLog("server-7"), []
    one, other, early = Request(), Request(), Request()
    log.begin([early])  # type: ignore[list-item]  # nobody listens yet
    log.listeners.append(lambda record: heard.append((record.seconds is None, record.stop_reason)))
    log.begin([one, other])  # type: ignore[list-item]
    log.end([(early, None), (one, None)])  # type: ignore[list-item]
    log.end_all()
    log.end_all()
    assert heard == [(True, None), (True, None), (False, None), (False, None)]


def test_an_aborted_request_and_its_resumption_are_two_records() -> None:
    records: list[RequestRecord] = []
    server = TransformersServer(make_model(), None, max_model_len=256, name="server-0")
    server.request_log.listeners.append(lambda record: records.append(record) if record.seconds is not None else None)
    client = FullyAsyncLLMServerClient(GlobalRequestLoadBalancer({"server-0": server}))
    num_steps, step = 0, server._engine.step

    def held() -> list[Any]:
        """The tenth step waits until somebody wants to abort, so that the request cannot end before."""
        nonlocal num_steps
        num_steps += 1
        while num_steps == 10 and not (server._verbs or server._closing):
            time.sleep(0.001)
        return step()

    server._engine.step = held  # type: ignore[method-assign]

    async def generate() -> int:
        asking = asyncio.create_task(client.generate("r", prompt_ids=[1, 2], sampling_params={"max_tokens": 250}))
        while num_steps < 10:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(server.abort_all_requests)
        await asyncio.to_thread(server.update_weights, make_model(seed=1).state_dict(), 4)
        await asyncio.to_thread(server.resume_generation)
        return len((await asking).token_ids)

    num_tokens = asyncio.run(generate())
    server.close()
    assert [record.stop_reason for record in records] == ["aborted", "length"]
    assert sum(record.num_tokens for record in records) == num_tokens == 250
    assert records[1].global_steps == 4
    assert records[0].started + records[0].seconds <= records[1].started
