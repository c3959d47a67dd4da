"""Mutations under which 06_compute_reward must fail."""

from __future__ import annotations


def the_reward_is_on_the_first_token() -> None:
    """The score of a session lands on the first token of the response."""
    from kitlib.agent_loop import AgentLoopOutput

    original = AgentLoopOutput.as_dict

    def as_dict(self):
        fields = original(self)
        return {**fields, "rm_scores": fields["rm_scores"].flip(0)} if "rm_scores" in fields else fields

    AgentLoopOutput.as_dict = as_dict


def a_nan_is_stored() -> None:
    """A reward that is no finite number is taken as it is."""
    from kitlib.reward import RewardLoopWorker

    RewardLoopWorker._finite = lambda self, score, row: float(score)


def the_rule_compares_numbers() -> None:
    """The answer 071 is taken for 71."""
    from kitlib.reward import rules

    original = rules._same_number
    rules._same_number = lambda answer, truth: original(answer.strip().lstrip("0"), truth)


def the_stage_mixes_the_rows_up() -> None:
    """The scores of the reward model come back in another order."""
    from kitlib.reward.reward_model import RewardModel

    original = RewardModel.score
    RewardModel.score = lambda self, prompts, responses: original(self, prompts, responses)[::-1]
