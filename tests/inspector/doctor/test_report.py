"""The report: as text, page, JSON and command; what is said when nothing is wrong, and when a rule breaks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kitlib.cli import main
from kitlib.errors import KitError
from kitlib.inspector.doctor import Finding, doctor
from kitlib.inspector.doctor import examine as examine_module
from kitlib.inspector.doctor.rules import RULES, Rule
from kitlib.inspector.doctor.shown import call_of
from kitlib.inspector.doctor.situation import Situation
from kitlib.transfer_queue import TransferQueue, acting_as, save_snapshot, take_snapshot, watch

from .cases import BUILDABLE, CASES, FOLDER, put


def queue_of(name: str) -> TransferQueue:
    tq = TransferQueue()
    put(CASES[name], tq)
    return tq


def test_text_and_page_say_the_same() -> None:
    report = doctor(FOLDER / "case_27_nan_reward.json")
    for shown in (report.text(120), report.html(), repr(report)):
        assert "nan_reward" in shown and "880f957_0_0" in shown and "Guard" in shown
    bundle = report._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert report.view.headline.startswith("1 error")


def test_silence_says_what_was_checked() -> None:
    report = doctor(FOLDER / "case_ok_sample_sync.json")
    assert report.ok and len(report) == 0
    assert "nothing is wrong" in report.text() and "checked: " in report.text() and "presence" in report.text()
    assert f"{len(RULES)} of {len(RULES)} rules" in report.text(200)


def test_json_is_plain() -> None:
    for path in (*FOLDER.glob("case_*.json"), *(FOLDER.parent / "more_cases").glob("case_nan*.json")):
        said = json.loads(json.dumps(doctor(path).as_dict(), allow_nan=False))
        assert all(one["says"] and one["way_out"] for one in said["findings"])


def test_a_view_for_every_finding() -> None:
    for name in ("case_27_nan_reward", "case_23a_reward_on_masked_row", "case_03a_field_missing_on_one_row"):
        raw = CASES[name]
        report = doctor(queue_of(name), stage=raw["stage"], config=raw["config"], batch=raw["batch"])
        for finding in report:
            assert report.view_of(finding).text()


@pytest.mark.parametrize("name", BUILDABLE)
def test_every_link_leads_to_a_view_on_the_page(name: str) -> None:
    raw = CASES[name]
    report = doctor(
        queue_of(name),
        stage=raw["stage"],
        config=raw["config"],
        batch=raw.get("batch"),
        global_steps=raw["global_steps"],
    )
    page = report.html()
    links, places = re.findall(r'href="#([\w-]+)"', page), re.findall(r'id="([\w-]+)"', page)
    assert set(links) == set(places) and len(places) == len(set(places))
    assert page.count("<details") == len(places) and bool(places) is bool(report.findings)
    assert all(call_of(report, one) in report.text(3000) for one in report)


def test_the_call_names_what_it_takes() -> None:
    raw = CASES["case_23a_reward_on_masked_row"]
    report = doctor(queue_of(raw["id"]), stage="advantage", config=raw["config"], batch=raw["batch"])
    assert 'see tokens(tq, "5925366_0_0", partition_id="train")' in report.text(3000)
    report = doctor(FOLDER / "case_03b_rewards_missing_on_one_row.json")
    assert 'see presence(snapshot, "compute_advantage", config, partition_id="train")' in report.text(3000)


def test_a_rule_that_raises_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(s: Situation) -> Iterator[Finding]:
        """broken_rule: never."""
        raise ZeroDivisionError("of course")
        yield

    monkeypatch.setattr(examine_module, "RULES", (Rule(broken, "presence"), *RULES))
    report = doctor(FOLDER / "case_27_nan_reward.json")
    assert report.errors[0].kind == "nan_reward"
    assert report.examination.failures[0].error == "ZeroDivisionError: of course"
    assert "broken could not be run: ZeroDivisionError" in report.text(120)


def test_rules_that_read_values_can_be_switched_off() -> None:
    path = FOLDER / "case_27_nan_reward.json"
    assert not doctor(path, values=False).errors
    assert not doctor(path, without=["nan_reward"]).errors
    assert not doctor(path, without=["groups"]).errors
    assert "switched off" in doctor(path, values=False).text()


def test_a_snapshot_from_a_file(tmp_path: Path) -> None:
    raw = CASES["case_03b_rewards_missing_on_one_row"]
    path = save_snapshot(take_snapshot(queue_of(raw["id"])), tmp_path / "queue.npz")
    report = doctor(path, stage="advantage", config=raw["config"], batch=raw["batch"])
    assert [one.kind for one in report.errors] == ["field_missing"]
    assert "a snapshot holds none" in report.text(200)


def test_evidence_from_an_event_log() -> None:
    raw = CASES["case_03b_rewards_missing_on_one_row"]
    tq = watch(TransferQueue())
    put(raw, tq)
    snapshot = take_snapshot(tq)
    bare = replace(snapshot, partitions={name: replace(p, last_writes=()) for name, p in snapshot.partitions.items()})
    report = doctor(bare, stage="advantage", config=raw["config"], batch=raw["batch"], events=tq)
    assert any("before the end of the log" in line for line in report.errors[0].evidence)


def test_evidence_of_a_clear() -> None:
    raw = CASES["case_ok_advantage_sync_grpo"]
    tq = watch(TransferQueue())
    put(raw, tq)
    key = raw["batch"]["keys"][0]
    with acting_as(stage="clear"):
        tq.kv_clear(keys=[key], partition_id="train")
    report = doctor(tq, stage="advantage", config=raw["config"], batch=raw["batch"])
    (finding,) = report.of("fewer_rows_than_keys")
    assert finding.keys == (key,) and any("cleared" in line and "by clear" in line for line in finding.evidence)


def test_unknown_stage_is_refused() -> None:
    with pytest.raises(KitError, match="compute_advantage"):
        doctor(TransferQueue(), stage="compute_advantages")


def test_an_empty_queue_is_in_order() -> None:
    assert doctor(TransferQueue()).ok


@pytest.mark.parametrize("tag", [{"is_prompt": True, "status": [1], "global_steps": "x"}, {"status": None}, {}])
def test_strange_tags_break_no_rule(tag: dict) -> None:
    tq = queue_of("case_ok_sample_sync")
    tq.kv_put(key="strange", partition_id="train", tag=tag)
    tq.kv_put(key="x", partition_id="another", tag=tag)
    for stage in ("sample", "compute_advantage", "resume", None):
        assert not doctor(tq, stage=stage, config=CASES["case_ok_sample_sync"]["config"]).examination.failures


def test_every_rule_names_its_kinds() -> None:
    assert all(rule.kinds for rule in RULES)
    expected = {raw["expect"]["finding"] for raw in CASES.values()} - {None}
    assert expected <= {kind for rule in RULES for kind in rule.kinds}


def test_command_prints_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["case_27_nan_reward", "case_ok_sample_sync"]
    assert main(["doctor", "--json", "--case", *[str(FOLDER / f"{name}.json") for name in names]]) == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert [first["id"], second["id"]] == names and second["findings"] == []
    (finding,) = first["findings"]
    assert set(finding) == {"kind", "severity", "keys", "fields", "numbers", "says", "way_out"}
    assert (finding["kind"], finding["keys"]) == ("nan_reward", ["880f957_0_0"])


def test_command_in_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", str(FOLDER / "case_ok_sample_sync.json")]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert main(["doctor", str(FOLDER / "case_27_nan_reward.json")]) == 1
    (tmp_path / "no.json").write_text("{")
    assert main(["doctor", "--case", str(tmp_path / "no.json")]) == 2
    assert "no.json" in capsys.readouterr().err
