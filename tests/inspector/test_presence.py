"""The presence view: what is missing, not due or optional under which config, and how rows collapse."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kitlib.config import load_config
from kitlib.inspector import View, presence
from kitlib.inspector.judgement import UnknownStageError
from kitlib.inspector.render.states import State
from kitlib.transfer_queue import KVBatchMeta, PartitionSnapshot, TransferQueue
from tests.inspector.queues import AGENT_LOOP, FLOATS, GRPO, OLD, keys_of, marker, partition, put_row, snapshot, tag
from tests.inspector.reading import assert_same_facts, squeeze

KEYS = keys_of()
READY_FOR_ADVANTAGE = (*AGENT_LOOP, *OLD)


def states(view: View, field: str) -> list[State]:
    """The state of a field on every line of the first table."""
    names = [column.name for column in view.model.tables[0].columns]
    return [row[names.index(field)].spans[0].state for row in view.model.tables[0].rows]


def columns(view: View) -> list[str]:
    return [column.name for column in view.model.tables[0].columns if column.mark]


def headline(view: View) -> str:
    first = view.text(300).splitlines()[0]
    assert view.headline == first
    return first


def keys_shown(view: View) -> list[str]:
    names = [column.name for column in view.model.tables[0].columns]
    return [str(row[names.index("keys")]) for row in view.model.tables[0].rows]


def test_ready_batch_is_one_line() -> None:
    view = presence(snapshot(partition(KEYS, READY_FOR_ADVANTAGE)), "compute_advantage", GRPO)
    assert (
        headline(view)
        == "train  next: compute_advantage  READY: all 8 rows have the 5 fields that compute_advantage reads"
    )
    assert len(view.model.tables[0].rows) == 1
    assert states(view, "rm_scores") == [State.NEEDED] and states(view, "prompts") == [State.PRESENT]
    assert states(view, "advantages") == [State.NOT_DUE]
    assert_same_facts(view)


def test_one_row_without_a_needed_field() -> None:
    source = snapshot(partition(KEYS, READY_FOR_ADVANTAGE, [("9c02_1_0", "rm_scores")]))
    view = presence(source, "compute_advantage", GRPO)
    assert headline(view).endswith("NOT READY: 1 of 8 rows lacks rm_scores (9c02_1_0)")
    assert states(view, "rm_scores") == [State.NEEDED, State.MISSING]
    assert keys_shown(view) == ["f3a1_0_0 f3a1_1_0 f3a1_2_0 .. (+4)", "9c02_1_0"]
    said = "kv_batch_get(these 8 keys, rm_scores) would return 8 rows WITHOUT rm_scores, and no error:"
    assert said in view.text(200)
    assert "written by generate_sequences or compute_reward_colocate" in view.text(300)
    assert_same_facts(view)


def test_the_sentence_about_get_is_true() -> None:
    """What the view says a plain get would do is what a plain get does."""
    tq = TransferQueue()
    put_row(tq, "aaaa_0_0", 1.0)
    put_row(tq, "aaaa_1_0", None)
    said = presence(tq, "compute_advantage", GRPO).text(300)
    assert "would return 2 rows WITHOUT" in said and "rm_scores" in said
    data = tq.kv_batch_get(["aaaa_0_0", "aaaa_1_0"], "train", ["response_mask", "rm_scores"])
    assert len(data) == 2 and set(data.keys()) == {"response_mask"}
    tq.kv_put("aaaa_2_0", "train", None, tag())
    assert "would raise ValueError: 1 row has no field at all: aaaa_2_0" in presence(tq, "compute_advantage").text(300)
    with pytest.raises(ValueError):
        tq.kv_batch_get(["aaaa_0_0", "aaaa_1_0", "aaaa_2_0"], "train", ["rm_scores"])


@pytest.mark.parametrize(
    ("config", "state"),
    [(GRPO, None), (None, State.MISSING), ({"critic": {"enable": True}}, State.MISSING)],
    ids=["grpo needs no values", "verl defaults are gae", "critic on"],
)
def test_config_decides_about_values(config: dict[str, object] | None, state: State | None) -> None:
    source = snapshot(partition(KEYS, READY_FOR_ADVANTAGE))
    view = presence(source, "compute_advantage", config)
    if state is None:
        assert "values" not in columns(view) and "READY: all" in headline(view)
        assert "switched off by" not in view.text(400)
        asked = presence(source, "compute_advantage", config, show_off=True).text(400)
        assert "switched off by this config: " in asked
        assert "; ref_log_prob (use_kl_loss or use_kl_in_reward); values (" in asked
    else:
        assert states(view, "values") == [state] and headline(view).endswith("NOT READY: no row has values")
        assert "because critic.enable, or null and algorithm.adv_estimator is gae" in view.text(400)


def test_reference_is_due_missing_or_off() -> None:
    kl = {**GRPO, "actor_rollout_ref": {"actor": {"use_kl_loss": True}}}
    source = snapshot(partition(KEYS, (*READY_FOR_ADVANTAGE, "advantages", "returns")))
    assert "ref_log_prob" not in columns(presence(source, "update_actor", GRPO))
    assert states(presence(source, "update_actor", kl), "ref_log_prob") == [State.MISSING]
    assert states(presence(source, "compute_advantage", kl), "ref_log_prob") == [State.LATE]
    assert states(presence(source, "compute_ref_log_prob", kl), "ref_log_prob") == [State.NOT_DUE]
    assert "NOT RUN under this config" in headline(presence(source, "compute_ref_log_prob", GRPO))


def test_optional_and_absent_is_no_fault() -> None:
    fields = tuple(name for name in (*READY_FOR_ADVANTAGE, "advantages", "returns") if name != "num_turns")
    view = presence(snapshot(partition(KEYS, fields)), "compute_metrics", GRPO)
    assert states(view, "num_turns") == [State.OPTIONAL] and " READY" in headline(view)
    assert "○ optional and absent" in view.text(200)


def test_padding_rows_are_marked_and_never_late() -> None:
    keys = [*KEYS, "pad77_0_0"]
    tags = {"pad77_0_0": tag(is_padding=True, prompt_len=127, response_len=1, seq_len=128)}
    lacking = [("pad77_0_0", "metrics"), ("f3a1_0_0", "metrics")]
    view = presence(snapshot(partition(keys, READY_FOR_ADVANTAGE, lacking, tags)), "compute_advantage", GRPO)
    by_key = dict(zip(keys_shown(view), states(view, "metrics"), strict=True))
    assert by_key["pad77_0_0 (padding)"] is State.ABSENT and by_key["f3a1_0_0"] is State.LATE
    assert "2 groups" in view.text() and "1 padding" in view.text()


def test_no_stage_judges_nothing() -> None:
    view = presence(snapshot(partition(KEYS, AGENT_LOOP, [("f3a1_0_0", "rm_scores")])))
    assert headline(view) == "train  UNEVEN: 1 field not on every row: rm_scores"
    assert states(view, "rm_scores") == [State.PRESENT, State.ABSENT]
    assert "advantages" not in columns(view)
    assert "EVEN: every row has the same 21 fields" in headline(presence(snapshot(partition(KEYS))))


def test_validation_rows_wait_for_no_training_field() -> None:
    view = presence(snapshot(partition(KEYS, partition_id="val")), "validate", GRPO)
    assert " READY: all 8 rows" in headline(view)
    assert not {"old_log_probs", "advantages"} & set(columns(view))


def test_columns_stand_where_they_are_first_written() -> None:
    view = presence(snapshot(partition(KEYS, (*READY_FOR_ADVANTAGE, "my_own"))), "compute_advantage", GRPO)
    groups = list(dict.fromkeys(column.group for column in view.model.tables[0].columns if column.mark))
    assert groups == ["dataset", "agent loop", "reward", "old log-prob", "advantage", "not in the contract"]
    by_name = {column.name: column.group for column in view.model.tables[0].columns}
    assert by_name["old_log_probs"] == "old log-prob" and by_name["my_own"] == "not in the contract"


def test_markers_stand_apart() -> None:
    keys = [*KEYS, "f3a1", "9c02", "aaaa", "bbbb"]
    tags = {"f3a1": marker("finished"), "9c02": marker("running"), "aaaa": marker("pending"), "bbbb": marker("pending")}
    bare = [(key, "*") for key in tags]
    view = presence(snapshot(partition(keys, READY_FOR_ADVANTAGE, bare, tags)), "compute_advantage", GRPO)
    assert " READY: all 8 rows" in headline(view) and "4 prompt markers" in view.text()
    rows = [[str(one) for one in row[:4]] for row in view.model.tables[1].rows]
    assert rows == [["2", "pending", "0", "aaaa bbbb"], ["1", "running", "4", "9c02"], ["1", "finished", "4", "f3a1"]]
    assert_same_facts(view)


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ({"f3a1": "finished", "9c02": "failure"}, "READY: 2 of 2 prompts settled, 1 of them failed"),
        (
            {"f3a1": "finished", "9c02": "running", "aaaa": "pending"},
            "WAITING: 1 of 3 prompts settled; 1 running (9c02), ",
        ),
        ({"f3a1": "done"}, "NOT READY: done (f3a1) is no status that the sampler knows"),
        ({}, "NOT READY: no prompt marker"),
    ],
    ids=["settled", "waiting", "unknown status", "no marker"],
)
def test_sampler_waits_for_markers_not_for_fields(statuses: dict[str, str], said: str) -> None:
    keys = [*KEYS, *statuses]
    tags = {uid: marker(status) for uid, status in statuses.items()}
    view = presence(snapshot(partition(keys, AGENT_LOOP, [(uid, "*") for uid in statuses], tags)), "sample", GRPO)
    assert headline(view).startswith(f"train  next: sample  {said}")


def before_sample(statuses: dict[str, str], steps: dict[str, int] | None = None, **config: object) -> str:
    """The verdict, with one row for each settled prompt but those whose uid begins with `e` (empty)."""
    keys = [f"{uid}_0_0" for uid, status in statuses.items() if status in ("finished", "failure") and uid[0] != "e"]
    tags = {uid: {**marker(status), "global_steps": (steps or {}).get(uid, 5)} for uid, status in statuses.items()}
    source = snapshot(partition([*keys, *statuses], AGENT_LOOP, [(uid, "*") for uid in statuses], tags))
    settings = [f"{name.replace('__', '.')}={value}" for name, value in config.items()]
    return headline(presence(source, "sample", load_config(settings))).removeprefix("train  next: sample  ")


FOUR = {"data__train_batch_size": 4, "actor_rollout_ref__actor__ppo_mini_batch_size": 4}
COLOCATE = {**FOUR, "trainer__v1__trainer_mode": "colocate_async"}
SEPARATE = {
    "data__train_batch_size": 8,
    "actor_rollout_ref__actor__ppo_mini_batch_size": 2,
    "trainer__v1__trainer_mode": "separate_async",
    "trainer__v1__separate_async__parameter_sync_step": 4,
    "actor_rollout_ref__rollout__nnodes": 1,
    "actor_rollout_ref__rollout__checkpoint_engine__backend": "nccl",
}
WAIT = {"trainer__v1__sampler__max_off_policy_strategy": "wait", "trainer__v1__sampler__max_off_policy_threshold": 2}
DROP = {"trainer__v1__sampler__max_off_policy_threshold": 2}
FILTER = {"algorithm__filter_groups__enable": "true"}
REFILL = {"trainer__v1__sampler__sync_refill_failed_groups": "true", "data__gen_batch_size": 1}


def prompts(finished: int = 0, failure: int = 0, running: int = 0, pending: int = 0) -> dict[str, str]:
    counts = {"finished": finished, "failure": failure, "running": running, "pending": pending}
    return {f"{status[0]}{number}0": status for status, count in counts.items() for number in range(count)}


@pytest.mark.parametrize(
    ("statuses", "config", "said"),
    [
        (prompts(4), FOUR, "READY: 4 prompts settled and sample asks for 4"),
        (prompts(3) | {"x0": "failure"}, FOUR, "READY: 4 prompts settled, 1 of them failed, and sample asks for 4"),
        (prompts(4, running=1), FOUR, "READY: 4 prompts settled and sample asks for 4; 1 running (r00)"),
        (
            prompts(2, running=1, pending=1),
            FOUR,
            "WAITING: 2 prompts settled and sample asks for 4; 1 running (r00), 1 pending (p00)",
        ),
        (prompts(2), FOUR, "NOT READY: 2 prompts settled and sample asks for 4; 2 more prompts have to be submitted"),
        (
            prompts(2, running=1),
            FOUR,
            "NOT READY: 2 prompts settled and sample asks for 4; 1 running (r00); 1 more prompt has to be submitted",
        ),
        (
            prompts(3) | {"e0": "failure"},
            FOUR | REFILL,
            "WAITING: 3 prompts settled and sample asks for 4; 1 failed (e0), to be replaced",
        ),
        (prompts(3) | {"x0": "failure"}, FOUR | REFILL, "READY: 4 prompts settled, 1 of them failed, and"),
        (prompts(4), FOUR | FILTER, "READY, unless groups are filtered: 4 prompts settled and sample asks for 4"),
        (
            prompts(4, running=1),
            FOUR | FILTER,
            "WAITING: 4 prompts settled and sample asks for 4; 1 running (r00); while groups are filtered, nothing "
            "may be in flight",
        ),
        (prompts(4, running=4), COLOCATE, "READY: 4 prompts finished and sample asks for 4; 4 running (r00, r10"),
        (
            prompts(3) | {"x0": "failure"},
            COLOCATE,
            "WAITING: 3 prompts finished and sample asks for 4; 1 failed (x0), to be replaced",
        ),
        (prompts(4, running=1), COLOCATE | FILTER, "READY, unless groups are filtered: 4 prompts finished"),
        (prompts(2, running=6), SEPARATE, "READY: 2 prompts finished and sample asks for 2; 6 running (r00, r10"),
        (prompts(1), SEPARATE, "NOT READY: 1 prompt finished and sample asks for 2; 1 more prompt has to be submitted"),
    ],
)
def test_sampler_takes_what_the_config_asks_for(statuses: dict[str, str], config: dict[str, object], said: str) -> None:
    assert before_sample(statuses, **config).startswith(said)


def test_old_prompts_are_replaced_or_waited_for() -> None:
    statuses, steps = prompts(4, running=1), {"f00": 3, "r00": 4}
    assert before_sample(statuses, steps, **COLOCATE).startswith("READY: 4 prompts finished")  # the threshold is 8
    said = "WAITING: 3 prompts finished and sample asks for 4; 1 running (r00); 1 too old (f00), to be replaced"
    assert before_sample(statuses, steps, **COLOCATE, **DROP) == said
    said = "WAITING: 3 prompts finished and sample asks for 4; 1 too old (f00), to be replaced"
    assert before_sample(prompts(4), steps, **COLOCATE, **DROP) == said
    said = "WAITING: 4 prompts finished and sample asks for 4; 1 running (r00); held back until the end of r00 (strat"
    assert before_sample(statuses, steps, **COLOCATE, **WAIT).startswith(said)
    assert before_sample(statuses, steps, **FOUR, **WAIT).startswith("READY: 4 prompts settled")  # sync: no age


def test_validation_waits_for_all_its_prompts() -> None:
    tags = {"f3a1": marker("finished")}
    part = partition(["f3a1"], AGENT_LOOP, [("f3a1", "*")], tags, partition_id="val")
    config = {"data": {"train_batch_size": 4}}
    assert "READY: 1 of 1 prompt settled" in headline(presence(snapshot(part), "sample", config, "val"))


def test_key_left_by_a_clear_is_named() -> None:
    view = presence(snapshot(partition([*KEYS, "gone"], AGENT_LOOP, [("gone", "*")], {"gone": {"status": "finished"}})))
    assert (
        "1 key is neither marker (no is_prompt tag) nor row (no field): cleared or half registered: gone"
        in view.text(200)
    )
    assert "EVEN" in headline(view)


def test_batch_limits_the_rows_and_names_what_is_gone() -> None:
    source = snapshot(partition(KEYS, READY_FOR_ADVANTAGE, [("9c02_1_0", "rm_scores")]))
    held = KVBatchMeta(["f3a1_0_0", "f3a1_1_0"], [{}, {}], "train")
    assert " READY: all 2 rows" in headline(presence(source, "compute_advantage", GRPO, batch=held))
    stale = KVBatchMeta(["f3a1_0_0", "dead_0_0"], [{}, {}], "train")
    said = headline(presence(source, "compute_advantage", GRPO, batch=stale))
    assert said.endswith("NOT READY: 1 key of the batch not in the queue (dead_0_0)")


def test_few_odd_rows_are_expanded_many_collapse() -> None:
    keys = keys_of(["aaaa", "bbbb", "cccc", "dddd"], n=16)
    few = [(key, "rm_scores") for key in keys[:3]]
    many = [(key, "rm_scores") for key in keys[:20]]
    view = presence(snapshot(partition(keys, lacking=few)))
    assert [str(row[0]) for row in view.model.tables[0].rows] == ["61", "1", "1", "1"]
    view = presence(snapshot(partition(keys, lacking=many)))
    assert [str(row[0]) for row in view.model.tables[0].rows] == ["44", "20"]
    view = presence(snapshot(partition(keys, lacking=few)), collapse=False, budget=200_000)
    assert len(view.model.tables[0].rows) == 64 and "3 kinds" not in view.text() and "2 kinds of row" in view.text()


def test_rows_that_lack_what_is_needed_come_before_rows_that_lack_more() -> None:
    late = [("f3a1_0_0", name) for name in ("metrics", "extra_fields", "num_turns")]
    source = snapshot(partition(KEYS, READY_FOR_ADVANTAGE, [*late, ("9c02_1_0", "rm_scores")]))
    assert keys_shown(presence(source, "compute_advantage", GRPO))[1:] == ["9c02_1_0", "f3a1_0_0"]


def test_a_line_a_row_makes_what_fits_and_counts_the_others_odd_ones_first() -> None:
    keys = [f"u{i}_0_0" for i in range(5000)]
    source = snapshot(partition(keys, READY_FOR_ADVANTAGE, [("u4999_0_0", "rm_scores")]))
    view = presence(source, "compute_advantage", GRPO, collapse=False)
    assert len(view.html().encode()) <= view.budget and "of 5,000 lines" in view.text(200)
    assert keys_shown(view)[:2] == ["u4999_0_0", "u0_0_0"]
    large = presence(source, "compute_advantage", GRPO, collapse=False, budget=20_000_000)
    assert len(keys_shown(large)) == 5000, "a page with room has all"


def test_filters() -> None:
    tags = {"f3a1_0_0": tag("odd")}
    source = snapshot(partition(KEYS, READY_FOR_ADVANTAGE, [("9c02_1_0", "rm_scores")], tags))

    def shown(**filters: object) -> View:
        view = presence(source, "compute_advantage", GRPO, collapse=False, **filters)  # type: ignore[arg-type]
        assert "NOT READY: 1 of 8 rows" in headline(view), "a filter must not change the verdict"
        return view

    assert keys_shown(shown(uid="9c")) == ["9c02_1_0", "9c02_0_0", "9c02_2_0", "9c02_3_0"]
    assert keys_shown(shown(status="odd")) == ["f3a1_0_0"]
    assert keys_shown(shown(key="*_3_0")) == ["9c02_3_0", "f3a1_3_0"]
    assert columns(shown(field="*log_prob*")) == ["rollout_log_probs", "log_probs", "old_log_probs"]
    view = shown(missing_only=True)
    assert keys_shown(view) == ["9c02_1_0"] and columns(view) == ["rm_scores"]
    assert "showing 1 of 8 rows because of the filter missing_only=True" in view.text()
    assert not shown(uid="zzz").model.tables


def test_long_uids_are_cut_to_a_prefix_that_is_unique_everywhere() -> None:
    uids = ["3f2b8c1d-aaaa-4e2e-9d5b-1f0c5e7a9b31", "3f2b8c1d-bbbb-4e2e-9d5b-1f0c5e7a9b31"]
    other = partition(keys_of(["3f2b8c1d-bbbc-4e2e-9d5b-1f0c5e7a9b31"]), partition_id="val")
    view = presence(snapshot(partition(keys_of(uids, 1)), other))
    assert keys_shown(view) == ["3f2b8c1d-aaaa_0_0 3f2b8c1d-bbbb_0_0"]
    assert "uids are shown by their first 13 characters" in view.text()
    assert f'title="{uids[0]}_0_0"' in view.html()


def test_unknown_stage_and_partition() -> None:
    with pytest.raises(UnknownStageError, match="did you mean compute_advantage"):
        presence(snapshot(partition(KEYS)), "_compute_advantages")
    view = presence(snapshot(partition(KEYS)), "compute_advantage", partition_id="trian")
    assert "no partition 'trian' in the queue; partitions: train" in view.text()


def test_empty_queue_and_hostile_names() -> None:
    tq = TransferQueue()
    assert "NOT READY: no partition 'train'" in presence(tq, "update_actor").text()
    assert "NOT READY" not in presence(tq, "submit_batch_to_rollout").text()
    key, field = "<b>\x1b]]>_0_0", "<script>\u202e"
    view = presence(snapshot(partition([key], (field,), tags={key: tag("<i>\x00", **{"<u>": "\n"})})), show_tags=True)
    assert "<b>" not in view.html() and "<script" not in view.html() and "\x1b" not in view.text()
    assert squeeze(r"<b>\x1b]]>_0_0") in squeeze(view.text()) and r"<u>=\n" in squeeze(view.text())
    assert_same_facts(view)


def test_ten_thousand_rows_take_a_moment() -> None:
    """A limit that only a quadratic step or a copy a cell would break; the usual time is a tenth of it."""
    keys = keys_of([f"{i:08x}-4e2e-9d5b" for i in range(1250)], n=8)
    fields = (*READY_FOR_ADVANTAGE, *(f"extra_{i}" for i in range(6)))
    present = np.random.default_rng(0).random((len(keys), len(fields))) > 0.001
    made = PartitionSnapshot(
        "train", tuple(keys), tuple(tag() for _ in keys), fields, present, present.astype(np.int32), (FLOATS, FLOATS)
    )
    begin = time.process_time()
    view = presence(snapshot(made), "compute_advantage", GRPO)
    assert len(view.html().encode()) <= 60_000 and view.text()
    assert time.process_time() - begin < 3
    assert "because a page is kept below 60 KB" in view.text(200) or len(view.model.tables[0].rows) < 400
