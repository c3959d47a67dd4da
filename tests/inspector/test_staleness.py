"""Staleness: the formula and the two strategies are those of the sampler."""

from __future__ import annotations

from typing import Any

import pytest

from kitlib.inspector import View, staleness
from kitlib.inspector.staleness_view import versions_spanned
from kitlib.replay_buffer.prompts import staleness as sampler_staleness
from kitlib.trainer.metrics import staleness_metrics
from tests.inspector.queues import partition, snapshot, tag
from tests.inspector.reading import assert_same_facts

NEWEST, OLDEST = (f"training/off_policy/trajectory_staleness{end}/mean" for end in ("", "_worst"))


def marker(status: str, step: int) -> dict[str, Any]:
    return {"is_prompt": True, "status": status, "global_steps": step}


def async_config(strategy: str, threshold: int | None = 3) -> dict[str, Any]:
    sampler = {"max_off_policy_threshold": threshold, "max_off_policy_strategy": strategy}
    return {"trainer": {"v1": {"trainer_mode": "colocate_async", "sampler": sampler}}}


MARKERS = {"old": marker("finished", 5), "edge": marker("finished", 7), "late": marker("running", 7)}
QUEUE = snapshot(partition([*MARKERS], [], tags=MARKERS))


def lines(view: View, number: int = 0) -> list[list[str]]:
    return [[str(one) for one in row] for row in view.model.tables[number].rows]


def test_the_formula_is_the_samplers() -> None:
    assert all(versions_spanned(now, step) == sampler_staleness(now, step) for now in range(9) for step in range(9))


def test_drop_evicts_what_spans_more_than_the_threshold() -> None:
    view = staleness(QUEUE, 9, async_config("drop"))
    assert "1 of 3 prompts beyond the threshold 3: they will be dropped" in view.headline
    assert [line[:2] + line[-2:] for line in lines(view)] == [
        ["5", "1", "dropped", "old"],
        ["3", "2", "-", "edge late"],
    ]
    assert_same_facts(view)


def test_wait_holds_sampling_back_for_what_is_in_flight_at_the_threshold() -> None:
    view = staleness(QUEUE, 9, async_config("wait"))
    assert "1 of 3 prompts beyond the threshold 3: they hold sampling back" in view.headline
    assert lines(view)[1][-2:] == ["running: holds sampling back", "edge late"]


@pytest.mark.parametrize("config", [None, async_config("drop", None)], ids=["sync", "no threshold"])
def test_nothing_is_evicted_in_sync_or_without_a_threshold(config: Any) -> None:
    assert "the oldest of 3 prompts spans 5 weight versions" in staleness(QUEUE, 9, config).headline


def test_rows_tell_the_weights_that_wrote_them() -> None:
    tags = {
        "a_0_0": tag(min_global_steps=7, max_global_steps=7),
        "a_1_0": tag(min_global_steps=5, max_global_steps=8),
        "a_2_0": {"status": "success"},
        "pad_0_0": tag(min_global_steps=1, max_global_steps=1, is_padding=True),
    }
    view = staleness(snapshot(partition([*tags], tags=tags)), 9)
    assert lines(view) == [
        ["v5..v8", "1", "0..3", "interrupted by 3 weight syncs", "a_1_0"],
        ["v7", "1", "1", "one version", "a_0_0"],
        ["?", "1", "-", "no weight version in the tag", "a_2_0"],
    ]
    assert "no marker; rows are up to 3 versions behind" in view.headline
    assert "versions behind v8, the weights of this step; 0 is on policy" in view.html()


@pytest.mark.parametrize("step", [2, 3, 6])
def test_behind_is_the_staleness_of_the_metrics(step: int) -> None:
    written = {"a_0_0": (1, 1), "a_1_0": (0, 1)}
    tags = {key: tag(min_global_steps=oldest, max_global_steps=newest) for key, (oldest, newest) in written.items()}
    behind = {line[0]: line[2] for line in lines(staleness(snapshot(partition([*tags], tags=tags)), step))}
    metrics = {key: staleness_metrics([tags[key]], step) for key in tags}
    of = {key: [f"{metrics[key][NEWEST]:.0f}", f"{metrics[key][OLDEST]:.0f}"] for key in tags}
    assert behind == {"v1": of["a_0_0"][0], "v0..v1": "..".join(of["a_1_0"])}
    assert of["a_0_0"][0] == of["a_0_0"][1] == str(step - 2)


def test_without_a_step_the_newest_row_is_on_policy() -> None:
    tags = {"a_0_0": tag(min_global_steps=4, max_global_steps=4), "a_1_0": tag(min_global_steps=3, max_global_steps=3)}
    view = staleness(snapshot(partition([*tags], tags=tags)))
    assert "step 5" in view.headline
    assert [line[2] for line in lines(view)] == ["1", "0"]
    assert "step taken from the tags" in view.text(300)
    newest = snapshot(partition(["a_0_0"], tags=tags))
    assert "all rows are on policy" in staleness(newest, 5).headline


def test_rows_of_the_next_step() -> None:
    """After the weight sync of a step, the async modes write rows for the next one."""
    tags = {"a_0_0": tag(min_global_steps=5, max_global_steps=5)}
    view = staleness(snapshot(partition([*tags], tags=tags)), 5)
    assert lines(view)[0][2:4] == ["-1", "one version, newer than this step: v5 is for step 6"]


def test_a_validation_reads_the_weights_of_its_own_step() -> None:
    tags = {"a_0_0": tag(min_global_steps=5, max_global_steps=5)}
    queue = snapshot(partition([*tags], partition_id="val", tags=tags))
    for step in (5, None):
        view = staleness(queue, step, partition_id="val")
        assert "step 5" in view.headline
        assert lines(view)[0][2] == "0"
