"""Every case file, read without a store: the finding with its keys, fields and numbers, and nothing else."""

from __future__ import annotations

import copy
import random
import re
from typing import Any

import pytest

from kitlib.inspector.doctor.case_file import situation_of
from kitlib.inspector.doctor.examine import examine
from kitlib.inspector.doctor.rules import RULES

from .cases import CASES, HEALTHY, MORE
from .healthy import rows_of, state, tensor, thing
from .judging import complaints

pytestmark = pytest.mark.filterwarnings("error")  # a remark of numpy would stop a rule where warnings are errors


@pytest.mark.parametrize("name", CASES)
def test_case_is_diagnosed(name: str) -> None:
    examination = examine(situation_of(CASES[name]))
    assert not examination.failures
    assert not complaints(CASES[name], examination.findings)


@pytest.mark.parametrize("name", MORE)
def test_made_up_case_is_diagnosed(name: str) -> None:
    examination = examine(situation_of(MORE[name]))
    assert not examination.failures
    assert not complaints(MORE[name], examination.findings)


@pytest.mark.parametrize("name", CASES | MORE)
def test_a_text_has_no_gaps(name: str) -> None:
    """A list of nothing, or a word that was left out, leaves two blanks or one before a stop."""
    for one in examine(situation_of((CASES | MORE)[name])).findings:
        for text in (one.says, one.way_out):
            assert text.endswith(".") and not re.search(r"  | [.,;:] |\b1 \w+s (are|have)\b", text), text


def test_the_way_out_of_an_empty_group_is_one_that_works() -> None:
    """Only failed groups are replaced: in sync mode on request, in the async modes always."""
    raw = MORE["case_empty_group_finished"]
    (found,) = [one for one in examine(situation_of(raw)).findings if one.kind == "empty_group_skipped"]
    assert "sync_refill" not in found.way_out and "raises" in found.way_out
    (failed,) = examine(situation_of(CASES["case_38b_selected_groups_without_rows"])).findings
    assert "sync_refill_failed_groups=true" in failed.way_out


def test_there_are_cases() -> None:
    assert len(CASES) == 99
    kinds = {kind for rule in RULES for kind in rule.kinds}
    shown = {raw["expect"]["finding"] for raw in (CASES | MORE).values()}
    assert kinds - shown <= {"tag_mismatch", "session_out_of_range", "empty_response", "same_key_twice"} | STARTUP
    assert len(HEALTHY) >= 19


def test_a_mix_in_a_field_of_somebodys_own_is_no_error() -> None:
    """No stage reads it; the case is not in a file, since a picture of the package cannot tell."""
    raw = state("advantage", 2, 2, seed=3)
    for row in rows_of(raw):
        row["fields"]["my_score"] = tensor([1, 2])
    rows_of(raw)[1]["fields"]["my_score"] = thing(None)
    (found,) = [one for one in examine(situation_of(raw)).findings if one.kind == "mixed_types"]
    assert (found.severity, found.keys, found.fields) == ("warning", (rows_of(raw)[1]["key"],), ("my_score",))


STARTUP = {kind for rule in RULES if rule.family == "start-up" for kind in rule.kinds}  # no state of a queue
STAGES = ["submit", "sample", "old_log_prob", "advantage", "update_actor", "compute_metrics", "validate", "resume"]
VALUES: list[dict[str, Any]] = [
    {"dtype": "object", "object": None},
    {"dtype": "object", "object": "x"},
    {"dtype": "int64", "layout": "row", "shape": [], "values": 3},
    {"dtype": "float32", "layout": "row", "shape": [2, 2], "values": [[1, "nan"], [2, 3]]},
    {"dtype": "int64", "layout": "row", "shape": [0], "values": []},
]
TAGS: list[dict[str, Any]] = [
    {},
    {"is_prompt": True},
    {"status": None},
    {"is_prompt": True, "status": "finished", "global_steps": "x"},
    {"seq_len": "a", "response_len": None},
]
KEYS = ["", "_", "a_b_c_d", "x_1_1_1", "ü_0_0", "pad_0_0", "y_0_-1", "z_0_0 "]


@pytest.mark.parametrize("seed", range(100))
def test_no_rule_breaks_on_what_makes_no_sense(seed: int) -> None:
    """Fields of another type, tags without a meaning, keys of no grammar, another stage and mode than were meant."""
    pick = random.Random(seed)
    raw = copy.deepcopy(CASES[pick.choice(sorted(CASES))])
    raw |= {"stage": pick.choice([*STAGES, "weird", None]), "mode": pick.choice(["sync", "separate_async", None])}
    raw.pop(pick.choice(["batch", "global_steps", "context", "config", "columns", "before"]), None)
    for entry in (entry for entries in raw["partitions"].values() for entry in entries):
        for field in entry["fields"]:
            entry["fields"][field] = pick.choice(VALUES) if pick.random() < 0.05 else entry["fields"][field]
        entry["tag"] = pick.choice(TAGS) if pick.random() < 0.1 else entry["tag"]
        entry["key"] = pick.choice(KEYS) if pick.random() < 0.05 else entry["key"]
    assert not examine(situation_of(raw)).failures
