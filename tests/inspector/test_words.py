"""Names, tags and strings: short, safe, and never two different things that look the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kitlib.inspector.names import ShortNames
from kitlib.inspector.render.printable import name_of, printable, value_of
from kitlib.inspector.tags import describe_tags

KEYS = st.lists(st.text(st.sampled_from("ab_0\\\n"), min_size=1, max_size=24), min_size=1, max_size=12, unique=True)


@given(KEYS)
def test_different_keys_look_different(keys: list[str]) -> None:
    names = ShortNames(keys)
    assert len({printable(names.key(key)) for key in keys}) == len(keys)


@given(st.lists(st.text(max_size=12), min_size=2, max_size=8, unique=True))
def test_printable_is_one_safe_line_and_keeps_difference(texts: list[str]) -> None:
    shown = [printable(text) for text in texts]
    assert len(set(shown)) == len(texts)
    for text in shown:
        assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text)
        text.encode()


def test_short_uids_stay_whole() -> None:
    names = ShortNames(["u1_0_0", "u10_0_0", "f3a1b2c3"])
    assert names.num_chars is None and names.key("u10_0_0") == "u10_0_0" and names.note() == ""


def test_uids_are_cut_at_one_length() -> None:
    names = ShortNames(["0123456789_0_0", "0123999999_1_0", "abcdefghij"])
    assert names.num_chars == 5
    assert [names.key(key) for key in ("0123456789_0_0", "abcdefghij")] == ["01234_0_0", "abcde"]


def test_very_long_names_keep_head_tail_and_digest() -> None:
    first, second = "x" * 300 + "a" + "y" * 300, "x" * 300 + "b" + "y" * 300
    assert len(name_of(first)) <= 120 and name_of(first) != name_of(second)
    assert value_of("z" * 100) == "z" * 60 + ".. (+40 characters)"


def test_tags_of_one_row_and_of_many() -> None:
    one = {"status": "success", "prompt_len": 11, "response_len": 20, "seq_len": 31, "global_steps": 4}
    one |= {"min_global_steps": 3, "max_global_steps": 3, "is_padding": False}
    two = {**one, "response_len": 34, "seq_len": 45, "min_global_steps": 2, "mine": 1}
    assert describe_tags([one]) == "success  len 11+20  v3  step 4"
    assert describe_tags([one, two]) == "success x2  len 11+20..34  v2..3  step 4  mine=1 (on 1 of 2)"
    assert describe_tags([{**one, "seq_len": 30}]) == "success  len 11+20  seq_len 30 (not the sum)  v3  step 4"
    assert describe_tags([{**one, "min_global_steps": None}]) == "success  len 11+20  v? (no weight version)  step 4"
    assert describe_tags([{**one, "prompt_len": None, "response_len": "x"}]).startswith(
        "success  len None+x  seq_len 31"
    )
    assert describe_tags([{"status": "success", "response_len": 20}]) == "success  response_len 20"
    assert describe_tags([{"prompt_len": 11, "seq_len": 31}]) == "no status  prompt_len 11  seq_len 31"
    assert describe_tags([{}]) == "no tags"
