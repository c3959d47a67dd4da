"""Mutations under which 11_stay_on_policy must fail."""

from __future__ import annotations


def aborted_answers_lose_their_tokens() -> None:
    """A resumed request forgets what was made before the abort."""
    from kitlib.rollout import client

    client._join = lambda first, second: second


def the_threshold_itself_is_dropped() -> None:
    """The strategy drop throws out what spans just as many versions as the threshold."""
    from kitlib.replay_buffer import ReplayBufferAsync
    from kitlib.replay_buffer.prompts import staleness

    ReplayBufferAsync._stale = lambda self, now, view: {
        uid: staleness(now, step)
        for uid, step in view.prompts["finished"].items()
        if self.max_off_policy_strategy == "drop" and staleness(now, step) >= (self.max_off_policy_threshold or 99)
    }


def importance_weights_are_not_truncated() -> None:
    """Token weights stay as large as the ratio."""
    from kitlib.algos import rollout_correction

    original = rollout_correction.importance_weights
    rollout_correction.importance_weights = lambda log_ratio, mask, level, threshold, normalize: original(
        log_ratio, mask, level, 1e9, normalize
    )


def every_update_of_a_step_has_an_old_policy_of_its_own() -> None:
    """separate_async scores each mini-batch with the weights of the moment, as the other modes do."""
    from kitlib.trainer.base import PPOTrainer
    from kitlib.trainer.separate_async import PPOTrainerSeparateAsync

    PPOTrainerSeparateAsync.compute_old_log_prob = PPOTrainer.compute_old_log_prob
