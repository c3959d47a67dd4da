"""Mutations under which 10_fit_four_ways must fail."""

from __future__ import annotations


def an_update_changes_no_weight() -> None:
    """The optimizer never steps."""
    from kitlib.workers.engine import FSDPEngine

    FSDPEngine.optimizer_step = lambda self: self.optimizer.zero_grad() or 0.5


def a_broken_run_leaves_its_threads() -> None:
    """TaskRunner closes nothing."""
    from kitlib.trainer.task_runner import TaskRunner

    TaskRunner.close = lambda self: None


def separate_async_stops_its_server() -> None:
    """Generation pauses from the end of a sample to the begin of the next one."""
    from kitlib.trainer.separate_async import PPOTrainerSeparateAsync

    PPOTrainerSeparateAsync.on_sample_end = lambda self: self.checkpoint_manager.abort_replicas()
    PPOTrainerSeparateAsync.on_sample_begin = lambda self: self.checkpoint_manager.resume_generation_replicas()
