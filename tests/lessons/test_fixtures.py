"""The recorded batch: what it holds at each point, that the trainer takes it, and that its command makes it again."""

from __future__ import annotations

import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.contract import FIELDS, needs
from kitlib.inspector.doctor import doctor
from kitlib.keys import uid_of
from kitlib.lessons import Fixture, FixtureError, load_fixture
from kitlib.lessons.fixtures import FILE, NEXT_STAGE, read_fixture, write_fixture
from kitlib.lessons.make_fixtures import record
from kitlib.paths import data_path
from kitlib.transfer_queue import explain_get, take_snapshot

ADDED = {
    "scored": {"log_probs", "entropy", "old_log_probs"},
    "advantages": {"advantages", "returns"},
}


@pytest.fixture(params=NEXT_STAGE)
def fixture(request: pytest.FixtureRequest) -> Fixture:
    return load_fixture(request.param)


def test_it_has_what_the_next_stage_reads_and_the_doctor_is_silent(fixture: Fixture) -> None:
    keys = [key for key, tag in fixture.tq.kv_list("train")["train"].items() if not tag.get("is_prompt")]
    assert explain_get(fixture.tq, keys, list(needs(fixture.stage, fixture.config).reads), "train").ok
    report = doctor(
        fixture.tq, stage=fixture.stage, config=fixture.config, batch=fixture.batch, global_steps=fixture.global_steps
    )
    assert [finding.kind for finding in report.findings] == []


def test_a_handle_after_sampling_and_markers_before(fixture: Fixture) -> None:
    tags = fixture.tq.kv_list("train")["train"]
    markers = [key for key, tag in tags.items() if tag.get("is_prompt")]
    if fixture.name == "finished":
        assert fixture.batch is None
        assert {tags[key]["status"] for key in markers} == {"finished"} and len(markers) == 4
    else:
        assert fixture.batch is not None and not markers
        assert dict(zip(fixture.batch.keys, fixture.batch.tags, strict=True)) == tags


def test_each_point_adds_what_its_stage_writes() -> None:
    fields = {name: set(take_snapshot(load_fixture(name).tq).partitions["train"].fields) for name in NEXT_STAGE}
    assert fields["finished"] == fields["sampled"]
    assert fields["scored"] - fields["sampled"] == ADDED["scored"]
    assert fields["advantages"] - fields["scored"] == ADDED["advantages"]
    assert set().union(*fields.values()) <= set(FIELDS)


def test_groups_with_no_one_two_and_three_right_answers() -> None:
    fixture = load_fixture("sampled")
    assert fixture.batch is not None
    rewards = defaultdict(list)
    data = fixture.tq.kv_batch_get(fixture.batch.keys, "train", ["rm_scores", "responses"])
    for key, scores in zip(fixture.batch.keys, data["rm_scores"].unbind(), strict=True):
        rewards[uid_of(key)].append(float(scores.sum()))
    assert sorted(sum(group) for group in rewards.values()) == [0, 1, 2, 3]
    assert {len(group) for group in rewards.values()} == {8}
    said = [fixture.tokenizer.decode(ids) for ids in data["responses"].unbind()]
    assert any("<tool_call>" in text for text in said)


def test_every_call_gives_a_queue_of_its_own() -> None:
    one, other = load_fixture("sampled"), load_fixture("sampled")
    assert one.batch is not None
    one.tq.kv_clear(keys=one.batch.keys, partition_id="train")
    one.batch.tags[0]["status"] = "spoilt"
    assert len(other.tq.kv_list("train")["train"]) == 32
    assert other.batch is not None and other.batch.tags[0]["status"] == "success"


def test_it_can_be_of_a_later_step() -> None:
    fixture = load_fixture("finished", global_steps=9)
    tags = fixture.tq.kv_list("train")["train"].values()
    assert {tag["global_steps"] for tag in tags} == {9} and fixture.global_steps == 9
    assert {tag["max_global_steps"] for tag in tags if not tag.get("is_prompt")} == {8}


def test_the_file_is_small_and_without_pickle() -> None:
    path = data_path(FILE)
    assert path.stat().st_size < 50_000
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            head = archive.read(name)[:200]
            assert b"'descr': '|O'" not in head, f"{name} is an array of objects"


def test_its_command_makes_it_again() -> None:
    header, columns = record()
    shipped, shipped_columns = read_fixture(data_path(FILE))
    assert header == {name: shipped[name] for name in header}
    assert columns.keys() == shipped_columns.keys()
    for name, rows in columns.items():
        assert len(rows) == len(shipped_columns[name]) == 32
        for row, old in zip(rows, shipped_columns[name], strict=True):
            assert same(row, old), name


def same(row: Any, old: Any) -> bool:
    """Tokens and objects to the bit, log-probabilities to 1e-4."""
    if not isinstance(row, torch.Tensor) or not row.is_floating_point():
        return torch.equal(row, old) if isinstance(row, torch.Tensor) else row == old
    return row.shape == old.shape and torch.allclose(row, old, atol=1e-4)


def test_an_unknown_name_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FixtureError, match="finished, sampled, scored, advantages"):
        load_fixture("score")
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, a=np.zeros(2))
    with pytest.raises(FixtureError, match="holds no fixture"):
        load_fixture("scored", foreign)
    write_fixture(tmp_path / "later.npz", {"version": 99}, {"a": [1]})
    with pytest.raises(FixtureError, match="version 99"):
        load_fixture("scored", tmp_path / "later.npz")
