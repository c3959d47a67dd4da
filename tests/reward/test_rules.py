"""The rules against transcripts as the tokenizers decode them."""

from __future__ import annotations

import pytest

from kitlib.reward import RewardError, default_compute_score

TRANSCRIPT = "<tool_call>12*59</tool_call>\ntool\n708\nassistant\n"


@pytest.mark.parametrize(
    ("solution", "score"),
    [
        (TRANSCRIPT + "####708", 1.0),
        (TRANSCRIPT + "####709", 0.0),
        (TRANSCRIPT + "708", 0.0),  # the right number, but not as an answer
        (TRANSCRIPT, 0.0),  # the tool said it, the model did not
        ("####708", 1.0),  # guessed: how it was found does not count
        ("#### 7 0 8 ", 1.0),
        ("####708<tool_call>12*59</tool_call>\ntool\n708\nassistant\n", 0.0),  # not the last part
        ("####708 or so", 0.0),
        ("####0708", 0.0),
        ("####", 0.0),
        ("", 0.0),
    ],
)
def test_tool_answer_is_what_follows_the_last_mark(solution: str, score: float) -> None:
    for data_source in ("kitlib/mult_tool", "kitlib/sum_tool"):
        assert default_compute_score(data_source, solution, "708") == score


@pytest.mark.parametrize(
    ("solution", "score"),
    [("46", 1.0), ("####46", 1.0), (" 4 6", 1.0), ("#### 46", 1.0), ("47", 0.0), ("1046", 0.0), ("", 0.0)],
)
def test_plain_answer_is_the_whole_response(solution: str, score: float) -> None:
    assert default_compute_score("kitlib/add", solution, "46") == score


@pytest.mark.parametrize(
    ("solution", "score"),
    [
        ("so 3 + 4. #### 1,234", 1.0),
        ("#### $1234.", 1.0),
        ("#### 12 no: #### 1234", 1.0),
        ("the answer is 1234", 0.0),
        ("#### 12345", 0.0),
    ],
)
def test_gsm8k_reads_the_last_marked_number(solution: str, score: float) -> None:
    assert default_compute_score("openai/gsm8k", solution, "1234") == score


def test_ground_truth_may_be_a_number() -> None:
    assert default_compute_score("kitlib/mult_tool", "####708", 708) == 1.0


def test_unknown_data_source_names_itself_and_the_way_out() -> None:
    with pytest.raises(RewardError, match=r"'my/task'.*kitlib/mult_tool.*reward\.custom_reward_function\.path"):
        default_compute_score("my/task", "####1", "1")
