"""Every case file, read without a store: the finding with its keys, fields and numbers, and nothing else."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from kitlib.inspector.doctor.case_file import situation_of
from kitlib.inspector.doctor.examine import examine

from .cases import CASES, HEALTHY
from .judging import complaints


@pytest.mark.parametrize("name", CASES)
def test_case_is_diagnosed(name: str) -> None:
    examination = examine(situation_of(CASES[name]))
    assert not examination.failures
    assert not complaints(CASES[name], examination.findings)


def test_there_are_cases() -> None:
    assert len(CASES) == 99
    assert len(HEALTHY) >= 19


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
