"""Properties: a planted fault is found with exactly its keys, wherever it is planted; a harmless change is silent."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitlib.inspector.doctor.case_file import situation_of
from kitlib.inspector.doctor.examine import examine
from kitlib.inspector.doctor.rules import RULES

from . import faults, faults_of_groups, faults_of_prompts, faults_of_rows
from .faults import HARMLESS
from .healthy import STAGES, state

FAULTS = faults.FAULTS | faults_of_prompts.FAULTS | faults_of_rows.FAULTS | faults_of_groups.FAULTS
sizes = st.tuples(st.integers(2, 6), st.sampled_from([2, 4]), st.integers(0, 10_000))


def loud(raw: dict) -> list[str]:
    """What is said above info."""
    found = examine(situation_of(raw))
    assert not found.failures
    return [f"{one.kind} {one.keys} {one.says}" for one in found.findings if one.severity != "info"]


@pytest.mark.parametrize("stage", STAGES)
@given(size=sizes, mode=st.sampled_from(["sync", "colocate_async"]))
@settings(max_examples=15, deadline=None)
def test_a_healthy_state_is_silent(stage: str, size: tuple[int, int, int], mode: str) -> None:
    assert not loud(state(stage, *size, mode))


@pytest.mark.parametrize("stage", STAGES)
@given(size=sizes, which=st.lists(st.sampled_from(HARMLESS), min_size=1, max_size=4, unique=True))
@settings(max_examples=25, deadline=None)
def test_harmless_changes_are_silent(stage: str, size: tuple[int, int, int], which: list) -> None:
    raw = state(stage, *size)
    for change in which:
        change(raw, random.Random(size[2]))
    assert not loud(raw)


@pytest.mark.parametrize("name", FAULTS)
@given(data=st.data(), size=sizes)
@settings(max_examples=10, deadline=None)
def test_a_planted_fault_is_found(name: str, data: st.DataObject, size: tuple[int, int, int]) -> None:
    fault = FAULTS[name]
    raw = state(data.draw(st.sampled_from(fault.stages)), *size)
    kind, keys, fields = fault.plant(raw, random.Random(size[2]))
    found = examine(situation_of(raw))
    assert not found.failures
    right = [one for one in found.findings if one.kind == kind]
    assert [(set(one.keys), set(one.fields)) for one in right] == [(set(keys), set(fields))]
    others = {one.kind for one in found.findings if one.severity != "info"} - {kind, *fault.also}
    assert not others


def test_every_rule_has_a_planted_fault() -> None:
    """By what the faults return: plant each once and collect the kinds."""
    planted = set()
    for fault in FAULTS.values():
        kind, _, _ = fault.plant(state(fault.stages[0], 4, 4, 0), random.Random(0))
        planted.add(kind)
    assert [rule.name for rule in RULES if not planted & set(rule.kinds)] == []
