"""Every case file, read without a store: the finding with its keys, fields and numbers, and nothing else."""

from __future__ import annotations

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
