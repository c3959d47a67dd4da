"""AgentLoopOutput.as_dict: which fields a trajectory has, and of what type."""

from __future__ import annotations

import torch

from kitlib.agent_loop import AgentLoopMetrics, AgentLoopOutput
from kitlib.contract import FIELDS


def output(**fields: object) -> AgentLoopOutput:
    return AgentLoopOutput(prompt_ids=[1, 2], response_ids=[3, 4, 5], response_mask=[1, 0, 1], **fields)


def test_what_is_not_set_is_not_a_field() -> None:
    assert set(output().as_dict()) == {"prompts", "responses", "response_mask", "metrics", "extra_fields"}
    fields = output(num_turns=0, mm_processor_kwargs={}).as_dict()
    assert fields["num_turns"] == 0
    assert fields["mm_processor_kwargs"] == {}
    assert fields["mm_processor_output"] is None


def test_tensors_have_the_types_of_the_contract() -> None:
    fields = output(response_logprobs=[-1.0, 0.0, -2.0], reward_score=1).as_dict()
    for name in ("prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores"):
        assert str(fields[name].dtype) == f"torch.{FIELDS[name].dtype}"
    assert fields["rm_scores"].tolist() == [0.0, 0.0, 1.0]
    assert fields["rollout_log_probs"].tolist() == [-1.0, 0.0, -2.0]


def test_a_score_of_zero_is_a_score() -> None:
    assert output(reward_score=0.0).as_dict()["rm_scores"].tolist() == [0.0, 0.0, 0.0]


def test_teacher_columns_leave_extra_fields_and_the_output_keeps_its_own() -> None:
    teacher = torch.zeros(5, 1)
    one = output(extra_fields={"teacher_ids": teacher, "turn_scores": []})
    fields = one.as_dict()
    assert fields["teacher_ids"] is teacher
    assert fields["extra_fields"] == {"turn_scores": []}
    assert "teacher_ids" in one.extra_fields


def test_experts_span_the_whole_sequence() -> None:
    experts = output(routed_experts=torch.ones(3, 2, 4)).as_dict()["routed_experts"]
    assert experts.dtype == torch.int16
    assert experts.shape == (5, 2, 4)
    assert experts[:, 0, 0].tolist() == [1, 1, 1, 0, 0]


def test_metrics_hold_only_what_happened() -> None:
    metrics = AgentLoopMetrics(num_preempted=-1)
    metrics.add("tool_calls", 0.25)
    metrics.add("tool_calls", 0.5)
    assert metrics.as_dict() == {"num_preempted": -1, "tool_calls": 0.75}
