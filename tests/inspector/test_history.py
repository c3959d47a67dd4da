"""Views of the event log: the life of a key, the provenance of a field, the byte ledger, recorded reads and writes."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from kitlib.inspector import NoEventsError, View, byte_ledger, key_life, provenance, stage_card
from kitlib.transfer_queue import TransferQueue, acting_as, jagged, watch
from kitlib.transfer_queue.watched import WatchedQueue
from tests.inspector.queues import GRPO
from tests.inspector.reading import assert_same_facts

KEYS = ["f3a1_0_0", "f3a1_1_0"]


def floats(*lengths: int) -> torch.Tensor:
    return jagged([torch.zeros(length) for length in lengths])


def columns(**fields: torch.Tensor) -> TensorDict:
    return TensorDict(fields, batch_size=2)


@pytest.fixture
def tq() -> WatchedQueue:
    """Two rows through three stages; the worker scores whole sequences, the driver cuts out the response."""
    queue = watch(TransferQueue())
    for number, key in enumerate(KEYS):
        with acting_as(stage="generate_sequences", worker=f"agent-loop-{number}"):
            row = {"uid": "f3a1", "response_mask": torch.ones(4 + number), "rm_scores": torch.zeros(4 + number)}
            queue.kv_put(key, "train", row, {"status": "success"})
    with acting_as(stage="compute_old_log_prob"):
        with acting_as(worker="ActorRolloutRefWorker"):
            queue.kv_batch_get(KEYS, "train", ["response_mask"])
            queue.kv_batch_put(KEYS, "train", columns(entropy=floats(10, 11)))
        queue.kv_batch_get(KEYS, "train", ["entropy"])
        queue.kv_batch_put(KEYS, "train", columns(entropy=floats(4, 5)))
    with acting_as(stage="compute_advantage"):
        queue.kv_batch_get(KEYS, "train", ["uid", "response_mask", "rm_scores"])
        queue.kv_batch_put(KEYS, "train", columns(advantages=floats(4, 5), returns=floats(4, 5)))
    return queue


def table(view: View, number: int = 0) -> list[list[str]]:
    return [[str(one) for one in row] for row in view.model.tables[number].rows]


def test_life_of_a_key_tells_who_did_what(tq: WatchedQueue) -> None:
    view = key_life(tq, KEYS[0])
    assert view.headline == "f3a1_0_0  train  written 4 times, read 3 times; alive"
    lines = table(view)
    assert [line[1] for line in lines] == ["put", "read", "put", "read", "put", "read", "put"]
    assert lines[0][2:4] == ["generate_sequences", "agent-loop-0"] and "tags status=success" in lines[0][4]
    assert lines[2][3] == "ActorRolloutRefWorker" and lines[4][3] == ""
    assert lines[4][4] == "entropy float32 J[4], 16 bytes over float32 J[10] (entropy)"
    assert_same_facts(view)


def test_life_of_a_key_ends_with_its_clear_and_may_begin_again(tq: WatchedQueue) -> None:
    with acting_as(stage="clear"):
        tq.kv_clear(KEYS, "train")
    assert "cleared by clear at +" in key_life(tq, KEYS[0]).headline
    tq.kv_put(KEYS[0], "train", None, {"status": "finished"})
    view = key_life(tq, KEYS[0])
    assert "tagged 1 time" in view.headline and "written again after it was cleared" in view.headline
    assert table(view)[-1][4] == "tags status=finished", "the tags of the first life are forgotten"


def test_tag_changes_show_before_and_after(tq: WatchedQueue) -> None:
    tq.kv_put(KEYS[0], "train", None, {"status": "late", "mine": 3})
    assert table(key_life(tq, KEYS[0]))[-1][1::3] == ["tag", "tags status=success->late, mine=3"]


def test_refused_call_is_loud_and_counts_as_no_write(tq: WatchedQueue) -> None:
    with pytest.raises(ValueError):
        tq.kv_batch_put([KEYS[0], KEYS[0]], "train", columns(x=floats(1, 1)))
    view = key_life(tq, KEYS[0])
    assert "written 4 times" in view.headline and "failed 1 time" in view.headline
    assert "Error" in table(view)[-1][4] and provenance(tq, "x").headline.startswith("x  train  written by nobody")


def test_unknown_key_is_answered_with_near_ones(tq: WatchedQueue) -> None:
    assert "no event of 8 events names this key; near: f3a1_1_0" in key_life(tq, "f3a1_1_1").headline
    assert key_life(tq, KEYS[0], "val").model.tables == ()


def test_provenance_names_writer_and_what_it_wrote_over(tq: WatchedQueue) -> None:
    view = provenance(tq, "entropy")
    assert "2 rows carry it, last written by compute_old_log_prob, over what" in view.headline
    last, first = table(view)
    assert last[1:7] == [
        "compute_old_log_prob",
        "",
        "2",
        "float32 J[4..5]",
        "float32 J[10..11] by compute_old_log_prob (ActorRolloutRefWorker)",
        "2",
    ]
    assert first[2:7] == ["ActorRolloutRefWorker", "2", "float32 J[10..11]", "-", "0"]
    assert_same_facts(view)


def test_provenance_gathers_the_rows_of_one_stage(tq: WatchedQueue) -> None:
    (line,) = table(provenance(tq, "rm_scores"))
    assert line[1:5] == ["generate_sequences", "agent-loop-0, agent-loop-1", "2", "float32 J[4..5]"]
    assert "last written by generate_sequences, once" in provenance(tq, "rm_scores").headline
    (own,) = table(provenance(tq, "rm_scores", key=KEYS[1]))
    assert own[2:5] == ["agent-loop-1", "1", "float32 J[5]"]


def test_provenance_forgets_cleared_rows(tq: WatchedQueue) -> None:
    tq.kv_clear(KEYS[:1], "train")
    assert "1 row carries it" in provenance(tq, "entropy").headline
    tq.kv_clear(KEYS[1:], "train")
    assert "no row carries it now" in provenance(tq, "entropy").headline
    with acting_as(stage="generate_sequences"):
        tq.kv_put("9c02_0_0", "train", {"rm_scores": torch.zeros(4)})
    assert [line[3] for line in table(provenance(tq, "rm_scores"))] == ["1", "2"], (
        "the rows of the next step stand apart"
    )


def test_provenance_knows_the_contract(tq: WatchedQueue) -> None:
    with acting_as(stage="compute_old_log_prob"):
        tq.kv_batch_put(KEYS, "train", columns(rm_scores=floats(4, 5)))
    note = "the contract has it written by generate_sequences or compute_reward_colocate, not by compute_old_log_prob"
    assert note in provenance(tq, "rm_scores").text(300)
    unwritten = provenance(tq, "value")
    assert "written by nobody" in unwritten.headline
    assert "by the contract it is written by compute_values" in provenance(tq, "values").text(300)


def test_ledger_counts_bytes_by_stage_and_side(tq: WatchedQueue) -> None:
    view = byte_ledger(tq)
    by_stage = {line[0]: line[1:] for line in table(view)}
    assert by_stage["generate_sequences"] == ["-", "-", "-", "72 bytes", "80 bytes"]  # 2 x (5 + 5) floats when dense
    # the workers read two masks of 36 bytes and write 84; a DataProto sends 40 + 40 out and 88 back
    assert by_stage["compute_old_log_prob"] == ["84 bytes", "36 bytes", "36 bytes", "84 bytes", "168 bytes"]
    assert by_stage["compute_advantage"] == ["72 bytes", "72 bytes", "-", "-", "-"]
    assert "the driver moved 264 bytes; a DataProto with every field would have moved 248 bytes" in view.headline
    by_field = {line[0]: line[1:] for line in table(view, 1)}
    assert by_field["response_mask"] == [
        "agent loop",
        "20 bytes",
        "36 bytes",
        "-",
        "36 bytes",
        "36 bytes",
        "generate_sequences, compute_old_log_prob, compute_advantage",
    ]
    assert_same_facts(view)


def test_ledger_without_workers_says_so(tq: WatchedQueue) -> None:
    unsigned = watch(TransferQueue())
    unsigned.kv_put("u_0_0", "train", {"x": torch.zeros(3)})
    assert "no worker signed a call" in byte_ledger(unsigned).headline
    assert "wrap them in acting_as" in byte_ledger(unsigned).text(300)


def test_stage_card_holds_the_stage_to_its_contract(tq: WatchedQueue) -> None:
    view = stage_card("compute_advantage", GRPO, events=tq)
    said = {str(row[0]): str(row[1]) for row in view.model.tables[0].rows}
    assert said["was read"].startswith("uid response_mask rm_scores")
    assert "in the contract, but not here: old_log_probs, rollout_log_probs" in said["was read"]
    assert said["was written"].endswith("in the contract, but not here: response_mask")
    with acting_as(stage="compute_advantage"):
        tq.kv_batch_put(KEYS, "train", columns(mine=floats(1, 1), response_mask=floats(4, 5)))
    assert "not in the contract: mine" in stage_card("compute_advantage", GRPO, events=tq).text(400)
    assert "no call signed with this stage" in stage_card("update_critic", events=tq).text(300)
    assert_same_facts(view)


def test_events_come_from_a_log_a_queue_or_a_list(tq: WatchedQueue) -> None:
    same = [key_life(source, KEYS[0]).text() for source in (tq, tq.log, tq.log.events())]
    assert same[0] == same[1] == same[2]
    with pytest.raises(NoEventsError, match=r"use tq = watch\(queue\)"):
        key_life(TransferQueue(), KEYS[0])
