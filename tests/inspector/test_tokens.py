"""One trajectory, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from kitlib.inspector import NoTokensError, View, tokens
from kitlib.transfer_queue import TransferQueue, take_snapshot
from tests.inspector.queues import tag
from tests.inspector.reading import assert_same_facts

VOCABULARY = ["<user>", "1", "2", "*", "=", "?", "<call>", "</call>", " ", "<b>"]


class Words:
    """A tokenizer that splits its own text greedily, longest word first."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(VOCABULARY[i] for i in token_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = []
        while text:
            word = max((word for word in VOCABULARY if text.startswith(word)), key=len)
            ids.append(VOCABULARY.index(word))
            text = text[len(word) :]
        return ids


def queue(**changes: object) -> TransferQueue:
    """Prompt of 4 tokens; response: two model tokens, two tool tokens, one model token."""
    fields: dict[str, object] = {
        "prompts": torch.tensor([0, 1, 3, 5]),
        "responses": torch.tensor([6, 7, 1, 8, 2]),
        "response_mask": torch.tensor([1, 1, 0, 0, 1]),
        "rollout_log_probs": torch.tensor([-0.5, -1.0, 0.0, 0.0, -0.25]),
        "old_log_probs": torch.tensor([-0.5, -0.9, 0.0, 0.0, -0.25]),
        "advantages": torch.tensor([0.72, 0.72, 0.0, 0.0, 0.72]),
        "rm_scores": torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]),
        **changes,
    }
    tq = TransferQueue()
    tq.kv_put("f3a1_3_0", "train", {name: value for name, value in fields.items() if value is not None}, tag())
    return tq


def rows(view: View, table: int) -> list[list[str]]:
    return [[str(one) for one in row] for row in view.model.tables[table].rows]


def test_first_line_and_runs() -> None:
    view = tokens(queue(), "f3a1_3_0", Words())
    assert view.text().splitlines()[0] == "f3a1_3_0  reward 1  advantage +0.72  trained 3 of 9 tokens"
    assert rows(view, 0) == [
        ["0..3", "prompt", "4", "<user>1*?"],
        ["4..5", "model", "2", "<call></call>"],
        ["6..7", "tool", "2", "1 "],
        ["8", "model", "1", "2"],
    ]
    assert_same_facts(view)


def test_numbers_of_trained_tokens() -> None:
    view = tokens(queue(), "f3a1_3_0", Words())
    names = [column.name for column in view.model.tables[1].columns]
    assert names == ["pos", "token", "id", "who", "rollout", "old", "advantages", "rm_scores", "old/rollout"]
    second = rows(view, 1)[1]
    assert second == ["5", "</call>", "7", "model", "-1.000", "-0.900", "0.720", "0.000", f"{math.exp(0.1):.3f}"]
    assert rows(view, 1)[2] == ["6..7", "(2 tokens, not trained)", "-", "tool", *["-"] * 5]


RECORDED = {
    "update_log_probs": torch.tensor([-0.3, -0.9, 0.0, 0.0, -0.15]),
    "loss_share": torch.tensor([0.0, 0.02, 0.0, 0.0, -0.013]),
}


def test_what_the_update_did_to_each_token() -> None:
    view = tokens(queue(**RECORDED), "f3a1_3_0", Words())
    assert view.headline.endswith("trained 3 of 9 tokens  1 clipped  3.3% of the update")
    names = [column.name for column in view.model.tables[1].columns]
    assert names[4:] == ["rollout", "old", "new", "advantages", "rm_scores", "old/rollout", "ratio", "share"]
    told = [row[-2:] for row in rows(view, 1)]
    assert told == [
        [f"{math.exp(0.2):.3f} clipped", "0"],
        ["1.000", "+2%"],
        ["-", "-"],
        [f"{math.exp(0.1):.3f}", "-1.3%"],
    ]
    assert_same_facts(view)


def test_a_token_without_an_advantage_is_not_called_clipped() -> None:
    nothing = {"advantages": torch.zeros(5), "loss_share": torch.zeros(5)}
    assert "clipped" not in tokens(queue(**{**RECORDED, **nothing}), "f3a1_3_0", Words()).text().split("\n")[0]


def test_the_view_says_how_to_get_the_ratio() -> None:
    assert "kitlib.record_update=true" in tokens(queue(), "f3a1_3_0", Words()).text(200)
    assert "kitlib.record_update=true" not in tokens(queue(**RECORDED), "f3a1_3_0", Words()).text(200)


def test_each_token_of_the_strip_tells_its_numbers() -> None:
    strip = tokens(queue(**RECORDED), "f3a1_3_0", Words()).model.tables[0].rows[1][3]
    assert str(strip) == "<call></call>" and [span.text for span in strip.spans] == ["<call>", "</call>"]
    told = strip.spans[0].hover
    assert told.startswith("pos 4  id 6  rollout -0.500  old -0.500  new -0.300") and told.endswith("clipped  share 0")
    assert 'title="pos 4  id 6' in tokens(queue(**RECORDED), "f3a1_3_0", Words()).html()


class HalfLetters(Words):
    """Two ids make one letter; alone each is half of it."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "\N{LATIN SMALL LETTER E WITH ACUTE}" if len(token_ids) > 1 else "\ufffd"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [6, 7]


def test_text_that_single_tokens_do_not_make_stays_whole() -> None:
    strip = tokens(queue(), "f3a1_3_0", HalfLetters()).model.tables[0].rows[1][3]
    assert [span.text for span in strip.spans] == ["\N{LATIN SMALL LETTER E WITH ACUTE}"]


def test_a_long_trajectory_stays_within_a_page() -> None:
    long = {
        name: torch.full((3000,), 0.5) for name in ("old_log_probs", "advantages", "update_log_probs", "loss_share")
    }
    ids = {"responses": torch.full((3000,), 9), "response_mask": torch.ones(3000, dtype=torch.int64)}
    view = tokens(queue(**ids, **long, rollout_log_probs=None, rm_scores=None), "f3a1_3_0", Words())
    assert len(view.html().encode()) <= view.budget and "of 3,000 lines" in view.text(200)


def test_retokenisation_is_checked() -> None:
    assert "encoding the text of the response gives the same 5 ids" in tokens(queue(), "f3a1_3_0", Words()).text()
    VOCABULARY.append("12")  # from now on "1", "2" would be read as one token
    try:
        split = queue(responses=torch.tensor([6, 1, 2, 8, 2]))
        said = "encoding the text of the response gives 4 ids for 5: first difference at pos 5"
        assert said in tokens(split, "f3a1_3_0", Words()).text()
    finally:
        VOCABULARY.pop()


def test_field_of_another_length_is_said_and_not_shifted() -> None:
    view = tokens(queue(old_log_probs=torch.zeros(4)), "f3a1_3_0", Words())
    assert "old_log_probs has 4 values for 5 response tokens" in view.text()
    assert rows(view, 1)[-1][5] == "missing"


def test_without_tokenizer_ids_are_shown() -> None:
    view = tokens(queue(), "f3a1_3_0")
    assert rows(view, 0)[1][3] == "6 7" and "tokens are shown as ids" in view.text()


def test_text_of_the_model_is_escaped() -> None:
    view = tokens(queue(responses=torch.tensor([9, 9, 9, 9, 9])), "f3a1_3_0", Words())
    assert "<b>" in view.text() and "<b>" not in view.html() and "&lt;b&gt;" in view.html()


def test_row_before_rewards_and_log_probs() -> None:
    early = queue(rm_scores=None, advantages=None, old_log_probs=None, rollout_log_probs=None)
    view = tokens(early, "f3a1_3_0", Words())
    assert "no reward yet" in view.text() and len(view.model.tables) == 1


def test_padding_row_trains_nothing() -> None:
    tq = queue(response_mask=torch.zeros(5, dtype=torch.int64))
    tq.kv_put("f3a1_3_0", "train", None, {"is_padding": True})
    view = tokens(tq, "f3a1_3_0", Words())
    assert "trained 0 of 9 tokens" in view.text() and rows(view, 0)[0][:2] == ["0..8", "padding"]


def test_what_cannot_be_shown_is_an_error_that_names_it() -> None:
    tq = queue()
    tq.kv_put("f3a1", "train", None, {"is_prompt": True})
    with pytest.raises(NoTokensError, match="no key 'f3a1_9_0' in partition 'train'"):
        tokens(tq, "f3a1_9_0")
    with pytest.raises(NoTokensError, match="'f3a1' has no responses to show; it has no field"):
        tokens(tq, "f3a1")
    with pytest.raises(NoTokensError, match="a snapshot holds none: pass the queue|snapshot holds none"):
        tokens(take_snapshot(tq), "f3a1_3_0")
