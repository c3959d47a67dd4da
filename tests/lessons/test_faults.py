"""Every fault plants one thing, the doctor finds it, mending leaves no trace, and its check knows right from wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kitlib.config import load_config
from kitlib.inspector.doctor import doctor
from kitlib.inspector.names import ShortNames
from kitlib.keys import uid_of
from kitlib.lessons import Fixture, faults, load_fixture
from kitlib.lessons.faults import Fault, FaultError
from kitlib.transfer_queue import KVBatchMeta, TransferQueue, explain_get
from kitlib.workers.bridge import WorkerError

ASYNC = ["trainer.v1.trainer_mode=colocate_async", "trainer.v1.sampler.max_off_policy_threshold=2"]


@dataclass
class Case:
    """moment: the fixture it is planted into. also: what else the doctor then rightly says. wrong: answers (built from
    the fault and a healthy key) with the words that the check must find for them."""

    moment: str
    wrong: list[tuple[Callable[[Fault, str], tuple[Any, ...]], str]]
    also: set[str] = field(default_factory=set)
    num_keys: int = 1  # that differ afterwards


def on_key(healthy: str) -> list[tuple[Any, str]]:
    """The wrong keys that every fault about a row must name."""
    return [
        (lambda f, h: (h, *list(f.truth.values())[1:]), f"is a healthy row: {healthy}"),
        (lambda f, h: ("zzz_0_0", *list(f.truth.values())[1:]), "no partition has a key 'zzz_0_0'"),
    ]


def on_uid(healthy: str) -> list[tuple[Any, str]]:
    return [
        (lambda f, h: (uid_of(h), *list(f.truth.values())[1:]), healthy),
        (lambda f, h: (h, *list(f.truth.values())[1:]), "is the key of a row: the uid"),
        (lambda f, h: ("zzz", *list(f.truth.values())[1:]), "no key begins with 'zzz'"),
    ]


CASES = {
    "lose_field": Case(
        "scored",
        [
            *on_key("it has every field that the others have"),
            (lambda f, h: (f.key, "uid"), "uid is on the row, too"),
            (lambda f, h: (f.key, "rm_score"), "no row has 'rm_score'"),
            (lambda f, h: (f.key,), "half of the answer: pass field, too"),
            (lambda f, h: (f.key, "uid", "val"), "this fault is found by key and field"),
        ],
    ),
    "misspell_field": Case(
        "scored",
        [
            *on_key("it has every field that the others have"),
            (lambda f, h: (f.key, "rm_scores"), "rm_scores is the name that the others have"),
            (lambda f, h: (f.key, "responses"), "responses is spelt well"),
            (lambda f, h: (f.key, "reward"), "no row has 'reward'"),
        ],
    ),
    "wrong_length": Case(
        "scored",
        [
            *on_key("its fields are as long as its response"),
            (lambda f, h: (f.key, "responses"), "responses: it is as long as the tags"),
        ],
    ),
    "nan_reward": Case("scored", on_key("its reward is a number")),
    "mask_reward": Case("scored", on_key("its reward sits on a token of the model")),
    "swap_advantages": Case(
        "advantages",
        [
            (lambda f, h: ({h, *f.truth["keys"]},), "its advantage fits its reward"),
            (lambda f, h: ({min(f.truth["keys"])},), "1 key still missing"),
            (lambda f, h: (min(f.truth["keys"]),), "the answer is a set of keys"),
        ],
        num_keys=2,
    ),
    "duplicate_uid": Case(
        "scored",
        [
            *on_uid("the field uid of its rows is what their keys say"),
            (lambda f, h: (f.says.split()[-1],), "its own rows carry its uid, and so they should"),
        ],
        num_keys=8,
    ),
    "misplace_row": Case(
        "scored",
        [
            *on_key("it has every field that the others have"),
            (lambda f, h: (f.key, "train"), "train is where the row belongs"),
            (lambda f, h: (f.key, "test"), "there is no partition 'test'"),
            (lambda f, h: (f.key,), "half of the answer: pass partition_id"),
        ],
        also={"partition_mixup", "orphan_rows", "short_group"},
        num_keys=2,
    ),
    "drop_row": Case(
        "scored",
        [(lambda f, h: (h,), "the queue holds it"), (lambda f, h: ("zzz_0_0",), "no partition has a key")],
        also={"short_group"},
    ),
    "ghost_key": Case("scored", on_key("it has fields; a ghost has a tag and nothing else")),
    "orphan_row": Case("scored", on_key("the batch holds it")),
    "pad_with_real_uid": Case(
        "scored",
        [
            *on_key("it is an answer, no padding"),
            (lambda f, h: (f.key, f.key.split("_")[0]), "is what its key says: which uid is in its field?"),
            (lambda f, h: (f.key, other_group(f)), "padding has not joined it"),
        ],
    ),
    "lose_session": Case(
        "finished",
        [
            *on_uid("all its sessions have left a row"),
            (lambda f, h: (f.truth["uid"], (f.truth["session_id"] + 1) % 8), "has its row"),
            (lambda f, h: (f.truth["uid"], 8), "no prompt has a session 8: they count from 0"),
        ],
    ),
    "stick_prompt": Case("finished", on_uid("its marker says that it has settled")),
    "underscore_in_uid": Case(
        "finished", on_uid("there is no underscore in its uid"), also={"orphan_rows", "unreachable_batch"}, num_keys=18
    ),
    "stale_group": Case("finished", on_uid("its weight versions are those of the other groups"), num_keys=9),
}


def other_group(fault: Fault) -> str:
    keys = [key for key in fault.tq.kv_list("train")["train"] if not key.startswith("pad")]
    return next(uid_of(key) for key in keys if uid_of(key) != fault.truth["uid"])


def plant(name: str, fixture: Fixture, seed: int = 3) -> Fault:
    function = getattr(faults, name)
    if fixture.batch is None:
        return function(fixture.tq, seed=seed)
    if name == "pad_with_real_uid":
        return function(fixture.tq, fixture.batch, fixture.tokenizer.eos_token_id, seed=seed)
    return function(fixture.tq, fixture.batch, seed=seed)


def fixture_of(name: str) -> Fixture:
    return load_fixture(CASES[name].moment, global_steps=9)


def healthy_key(fault: Fault) -> str:
    """A row that the fault has nothing to do with."""
    hit = {key for _, key in fault.saved}
    uids = {uid_of(key) for key in hit} if {"uid", "keys"} & set(fault.truth) else set()
    named = {str(value) for value in fault.truth.values()} | {fault.says.split()[-1]}
    keys = [key for key in fault.tq.kv_list("train")["train"] if "_" in key and "_" not in uid_of(key)]
    return next(key for key in keys if key not in hit and uid_of(key) not in uids | named and "-" in uid_of(key))


def picture(tq: TransferQueue) -> dict[tuple[str, str], Any]:
    """{(partition, key): (tag, {field: value})}: all that a queue holds, by value."""
    seen: dict[tuple[str, str], Any] = {}
    for partition_id, part in tq.snapshot().partitions.items():
        seen |= {(partition_id, key): (part.tag_of(key), {}) for key in part.keys}
        for name in part.fields:
            keys = [key for key in part.keys if part.has(key, name)]
            column = tq.kv_batch_get(keys, partition_id, [name]).get(name) if keys else []
            for key, value in zip(keys, column.unbind() if hasattr(column, "is_nested") else column, strict=True):
                seen[partition_id, key][1][name] = str(value)
    return seen


def test_every_fault_has_a_case() -> None:
    assert set(CASES) == {name for name in faults.__all__ if not name.startswith("Fault")}


@pytest.mark.parametrize("name", CASES)
def test_one_thing_is_planted_the_doctor_finds_it_and_mending_leaves_no_trace(name: str) -> None:
    fixture, case = fixture_of(name), CASES[name]
    config = load_config([*fixture.overrides, *ASYNC]) if name == "stale_group" else fixture.config
    before = picture(fixture.tq)
    fault = plant(name, fixture)
    after = picture(fixture.tq)
    assert len({key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}) == case.num_keys
    batch = fault.batch or fixture.batch
    report = doctor(fixture.tq, stage=fixture.stage, config=config, batch=batch, global_steps=fixture.global_steps)
    found = {finding.kind: finding for finding in report.findings}
    assert fault.kind in found, list(found)
    assert set(found) - {fault.kind} <= case.also
    fault.mend()
    assert picture(fixture.tq) == before


@pytest.mark.parametrize("name", CASES)
def test_the_right_finding_and_the_wrong_ones(name: str) -> None:
    fault = plant(name, fixture_of(name))
    assert fault.check(*fault.truth.values()).ok is True
    assert fault.check(**fault.truth).says == (fault.reveal(),)
    assert fault.check(*[...] * len(fault.truth)).ok is None
    assert fault.check().ok is False
    for build, words in CASES[name].wrong:
        answer = build(fault, healthy_key(fault))
        checked = fault.check(*answer)
        assert checked.ok is False, answer
        assert words in "\n".join(checked.says), (answer, checked.says)


@pytest.mark.parametrize("name", CASES)
def test_short_names_as_in_the_views_are_enough(name: str) -> None:
    fault = plant(name, fixture_of(name))
    short = ShortNames(key for keys in fault.tq.kv_list().values() for key in keys)
    names = {"key": short.key, "uid": short.uid, "keys": lambda keys: {short.key(k) for k in keys}}
    said = {what: names.get(what, lambda answer: answer)(answer) for what, answer in fault.truth.items()}
    if name == "underscore_in_uid":
        said["uid"] = fault.truth["uid"]  # a view shows what stands before the underscore
    assert fault.check(**said).ok is True, said


@pytest.mark.parametrize("name", CASES)
def test_the_seed_chooses_and_printing_does_not_give_it_away(name: str) -> None:
    found = {str(plant(name, fixture_of(name), seed).truth) for seed in range(4)}
    assert len(found) > 1
    fault = plant(name, fixture_of(name))
    for value in fault.truth.values():
        assert str(value) not in repr(fault) and str(value) not in str(fault)
    assert str(plant(name, fixture_of(name)).truth) == str(fault.truth)


def test_a_prompt_marker_is_no_healthy_row(tq: TransferQueue, batch: KVBatchMeta) -> None:
    fault = faults.lose_field(tq, batch)
    said = fault.check("u2", fault.truth["field"]).says
    assert "is a prompt marker" in said[0]


def test_a_uid_is_no_key(tq: TransferQueue, batch: KVBatchMeta) -> None:
    fault = faults.lose_field(tq, batch)
    tq.kv_put(key="abcdefgh-1234_0_0", partition_id="train", tag={"status": "success"})
    for uid in ("abcdefgh-1234", "abcd"):
        said = fault.check(uid, fault.truth["field"]).says
        assert f"{uid} is the uid of a whole group: which of its rows is it?" in said[0]
    assert "no partition has a key 'abcdex'" in fault.check("abcdex", fault.truth["field"]).says[0]


def test_names_may_stand_in_a_list(tq: TransferQueue, batch: KVBatchMeta) -> None:
    fault = faults.lose_field(tq, batch)
    assert fault.check([fault.key], {f" {fault.truth['field']}"}).ok is True
    assert "no row has 'rm_score'" in fault.check(fault.key, {"rm_score"}).says[0]
    fault.mend()
    fault = faults.misplace_row(tq, batch)
    assert fault.check({fault.key}, partition_id=["val "]).ok is True


def test_a_lost_field_takes_the_column_from_all_rows(tq: TransferQueue, batch: KVBatchMeta) -> None:
    fault = faults.lose_field(tq, batch)
    assert explain_get(tq, batch).missing_cells == [(fault.key, fault.truth["field"])]
    assert fault.truth["field"] not in tq.kv_batch_get(batch.keys, "train").keys()
    assert faults.lose_field(tq, batch, fields=["uid"]).truth["field"] == "uid"


def test_a_misplaced_row_is_missing_at_home(tq: TransferQueue, batch: KVBatchMeta) -> None:
    fault = faults.misplace_row(tq, batch)
    assert explain_get(tq, batch).missing_keys == [fault.key]
    assert list(tq.kv_list("val")["val"]) == [fault.key]


def test_a_queue_without_a_place_for_the_fault_is_refused(tq: TransferQueue, batch: KVBatchMeta) -> None:
    with pytest.raises(FaultError, match="no finished prompt"):
        faults.lose_session(tq)
    with pytest.raises(FaultError, match="no row of the batch has a reward"):
        faults.mask_reward(tq, batch)
    with pytest.raises(FaultError, match="5 steps older"):
        faults.stale_group(load_fixture("finished").tq)
    with pytest.raises(FaultError, match="two groups"):
        faults.duplicate_uid(tq, batch.select_keys(["u0_0_0", "u0_1_0"]))
    with pytest.raises(WorkerError, match="names no partition"):
        faults.drop_row(tq, KVBatchMeta(["u0_0_0"], [{}]))


def test_blanks_around_a_name_do_not_matter() -> None:
    fixture = load_fixture("scored")
    fault = faults.lose_field(fixture.tq, fixture.batch)
    key, field_name = fault.truth.values()
    assert fault.check(f" {key} ", f"{field_name} ").ok is True
    assert fault.check(f"{key[:-1]} {key[-1]}", field_name).ok is False
