"""The key grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitlib.keys import KeyGrammarError, TrajectoryKey, is_trajectory_key, new_uid, uid_of


@given(st.from_regex(r"[^_]+", fullmatch=True), st.integers(0), st.integers(0))
def test_a_key_survives_the_round_trip(uid: str, session_id: int, index: int) -> None:
    key = TrajectoryKey(uid, session_id, index)
    assert TrajectoryKey.parse(str(key)) == key
    assert uid_of(str(key)) == uid


@pytest.mark.parametrize("bad", ["", "u", "u_0", "u_0_", "a_b_0_0", "u_0_0_0", "u_-1_0", "_0_0", "u_x_0"])
def test_what_is_no_trajectory_key_is_refused_by_name(bad: str) -> None:
    assert not is_trajectory_key(bad)
    with pytest.raises(KeyGrammarError, match="expected {uid}_{session_id}_{index}"):
        TrajectoryKey.parse(bad)


def test_a_new_uid_has_no_underscore_and_is_new() -> None:
    assert "_" not in new_uid()
    assert new_uid() != new_uid()
