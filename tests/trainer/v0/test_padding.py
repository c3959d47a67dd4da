"""From sessions to padded columns, and from padded columns to what a worker reads."""

from __future__ import annotations

import pytest
import torch

from kitlib.agent_loop import AgentLoopOutput
from kitlib.trainer.v0 import SerialPipelineError
from kitlib.trainer.v0.padding import collate_outputs, left_right_2_no_padding, no_padding_2_padding
from kitlib.transfer_queue import jagged

PAD = 9


def outputs() -> list[AgentLoopOutput]:
    versions = {"min_global_steps": 1, "max_global_steps": 2}
    first = {**versions, "reward_extra_info": {"acc": 0.5}}
    second = {**versions, "reward_extra_info": {"acc": 1.0}, "turn_scores": [1]}
    return [
        AgentLoopOutput(
            prompt_ids=[1, 2],
            response_ids=[3, 4, 5],
            response_mask=[1, 0, 1],
            response_logprobs=[-1.0, 0.0, -2.0],
            reward_score=0.5,
            num_turns=4,
            extra_fields=first,
        ),
        AgentLoopOutput(
            prompt_ids=[6, 7, 8],
            response_ids=[1],
            response_mask=[1],
            response_logprobs=[-3.0],
            reward_score=1.0,
            num_turns=2,
            extra_fields=second,
        ),
    ]


def test_prompts_are_padded_left_and_responses_right() -> None:
    batch = collate_outputs(outputs(), 4, 5, PAD).batch
    assert batch["prompts"].tolist() == [[9, 9, 1, 2], [9, 6, 7, 8]]
    assert batch["responses"].tolist() == [[3, 4, 5, 9, 9], [1, 9, 9, 9, 9]]
    assert batch["input_ids"].tolist() == [[9, 9, 1, 2, 3, 4, 5, 9, 9], [9, 6, 7, 8, 1, 9, 9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 0, 0, 1, 2, 3, 4, 4, 4], [0, 0, 1, 2, 3, 3, 3, 3, 3]]
    assert batch["response_mask"].tolist() == [[1, 0, 1, 0, 0], [1, 0, 0, 0, 0]]
    assert batch["rollout_log_probs"].tolist() == [[-1, 0, -2, 0, 0], [-3, 0, 0, 0, 0]]
    assert batch["rm_scores"].tolist() == [[0, 0, 0.5, 0, 0], [1, 0, 0, 0, 0]]


def test_objects_of_a_session_become_columns() -> None:
    data = collate_outputs(outputs(), 4, 5, PAD)
    columns = {name: column.tolist() for name, column in data.non_tensor_batch.items()}
    assert columns["__num_turns__"] == [4, 2]
    assert columns["acc"] == [0.5, 1.0]
    assert columns["turn_scores"] == [None, [1]]  # a loop that does not report it has the column too
    assert columns["tool_rewards"] == [None, None]
    assert data.meta_info["reward_extra_keys"] == ["acc"]
    assert len(data.meta_info["metrics"]) == 2


def test_a_column_that_one_session_lacks_is_left_out() -> None:
    sessions = outputs()
    sessions[1].reward_score = None
    sessions[0].response_logprobs = None
    batch = collate_outputs(sessions, 4, 5, PAD).batch
    assert not {"rm_scores", "rollout_log_probs"} & set(batch.keys())


@pytest.mark.parametrize(("prompt_length", "response_length", "what"), [(2, 5, "prompt of 3"), (4, 2, "response of 3")])
def test_a_session_that_is_too_long_is_named(prompt_length: int, response_length: int, what: str) -> None:
    with pytest.raises(SerialPipelineError, match=f"a {what} tokens"):
        collate_outputs(outputs(), prompt_length, response_length, PAD)


def test_workers_get_rows_without_padding() -> None:
    data = collate_outputs(outputs(), 4, 5, PAD)
    rows = left_right_2_no_padding(data, ["response_mask", "rm_scores", "not there"])
    ragged = {name: [row.tolist() for row in rows[name].unbind()] for name in rows.keys()}
    assert ragged == {
        "input_ids": [[1, 2, 3, 4, 5], [6, 7, 8, 1]],
        "position_ids": [[0, 1, 2, 3, 4], [0, 1, 2, 3]],
        "prompts": [[1, 2], [6, 7, 8]],
        "responses": [[3, 4, 5], [1]],
        "response_mask": [[1, 0, 1], [1]],
        "rm_scores": [[0, 0, 0.5], [1]],
    }


def test_the_response_part_of_a_model_output_comes_back_padded() -> None:
    data = collate_outputs(outputs(), 4, 5, PAD)
    scores = jagged([torch.tensor([10.0, 11, 12, 13, 14]), torch.tensor([20.0, 21, 22, 23])])  # t scores token t + 1
    assert no_padding_2_padding(scores, data).tolist() == [[11, 12, 13, 0, 0], [22, 0, 0, 0, 0]]
