"""Mutations under which 00_run_one_step must fail."""

from __future__ import annotations


def every_advantage_is_zero() -> None:
    """The advantage stage writes zeros."""
    from kitlib.trainer import advantage

    original = advantage.compute_advantage_for_multi_trajectories
    advantage.compute_advantage_for_multi_trajectories = lambda *a, **k: tuple(0 * x for x in original(*a, **k))


def the_server_keeps_its_first_weights() -> None:
    """The weight sync does nothing."""
    from kitlib.rollout import CheckpointEngineManager

    CheckpointEngineManager.update_weights = lambda self, global_steps=None: None
