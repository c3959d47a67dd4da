"""Mutations under which 08_compute_advantage must fail."""

from __future__ import annotations


def the_standard_deviation_divides_by_n() -> None:
    """A group's spread is the biased one."""
    from kitlib.algos.groups import Groups

    original = Groups.std
    Groups.std = lambda self, values: original(self, values) * ((self.size() - 1) / self.size()).clamp(min=0.5).sqrt()


def tokens_of_a_tool_get_the_advantage_of_the_answer() -> None:
    """GRPO forgets the mask."""
    from functools import wraps

    from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY

    original = ADV_ESTIMATOR_REGISTRY["grpo"]

    @wraps(original)
    def unmasked(token_level_rewards, response_mask, index, **settings):
        return original(token_level_rewards, response_mask * 0 + 1, index, **settings)

    ADV_ESTIMATOR_REGISTRY["grpo"] = unmasked


def every_output_of_a_session_enters_the_group() -> None:
    """A session with several outputs counts several times."""
    import kitlib.algos

    kitlib.algos.compute_advantage_for_multi_trajectories = lambda data, keys, name, **settings: (
        kitlib.algos.compute_advantage(data, name, **settings)
    )


def a_nan_reward_passes() -> None:
    """The trainer does not look at the rewards."""
    from kitlib.trainer.advantage import Advantage

    Advantage._refuse_bad_rewards = lambda self, batch, scores: None
