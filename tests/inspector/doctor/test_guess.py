"""Where a run stands, guessed from its queue: the fields on its rows say how far the step has come."""

from __future__ import annotations

import pytest

from kitlib.inspector.doctor import doctor
from kitlib.lessons import load_fixture


@pytest.mark.parametrize(
    ("fixture", "stage"),
    [("sampled", "compute_old_log_prob"), ("scored", "compute_advantage"), ("advantages", "update_actor")],
)
def test_the_stage_that_comes_next(fixture: str, stage: str) -> None:
    """A field that is written only under other settings (sum_pi_squared) does not hold the guess back."""
    recorded = load_fixture(fixture)
    report = doctor(recorded.tq, config=recorded.config)
    assert (report.stages, report.is_guessed) == ((stage,), True)
