"""Trainer devices that help generating while the trainer has nothing to train on.

verl 0.9.1: trainer/ppo/v1/trainer_separate_async.py, PPOTrainerSeparateAsync (hybrid_rollout.enable_switch).
`SwitchPolicy` decides, `HybridRollout` does. At the end of a step the policy compares

    benefit = prompts still lacking * seconds a prompt has been waited for * (1 - 1 / speed-up by the extra servers)
    cost    = mean seconds of the last switches to rollout + of those back

and lends the devices if the benefit is larger, or if it does not know one of the two yet. They come back when
`threshold` groups can be sampled. The threshold follows the waiting: after `release_steps` steps in a row with idle
time it rises by `step_up`, after as many without it falls by `step_down`, between one mini-batch and the whole batch.

Differs from verl: the extra servers exist only with enable_switch (verl also serves validation and warm-up with them).
A checkpoint keeps the threshold; verl's starts anew.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from kitlib.rollout import CheckpointEngineManager, GlobalRequestLoadBalancer, LLMServerManager

_STATE = ("ratio", "idle_steps", "calm_steps")


class SwitchPolicy:
    """When to lend the trainer's devices, and for how long.

    Args:
        config: the group `trainer.v1.separate_async.hybrid_rollout`.
        train_batch_size: prompts a step.
        parameter_sync_step: updates, that is mini-batches, a step.
        scaling_factor: servers with the trainer's devices / servers without them.
    """

    def __init__(self, config: Any, train_batch_size: int, parameter_sync_step: int, scaling_factor: float) -> None:
        self.config = config
        self.train_batch_size = train_batch_size
        self.mini_batch_size = train_batch_size // parameter_sync_step
        self.scaling_factor = scaling_factor
        self.ratio = config.switch_threshold_ratio
        self.idle_steps = self.calm_steps = 0
        self.wait_seconds, self.num_waited = 0.0, 0
        self.costs: dict[str, deque[float]] = {
            name: deque(maxlen=config.switch_cost_window_size) for name in ("to_rollout", "to_trainer")
        }

    @property
    def threshold(self) -> int:
        """Groups that must be sampleable before the devices go back to training."""
        return min(max(round(self.ratio * self.train_batch_size), self.mini_batch_size), self.train_batch_size)

    def state_dict(self) -> dict[str, float]:
        """Where the threshold stands. Seconds are not in it: a resumed run measures its own machine."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, float]) -> None:
        for name in _STATE:
            setattr(self, name, state[name])

    def note_wait(self, seconds: float, num_prompts: int) -> None:
        """A step waited so long for so many prompts that were not there when it asked."""
        if seconds > 0 and num_prompts > 0:
            self.wait_seconds += seconds
            self.num_waited += num_prompts

    def adapt(self, had_idle: bool) -> None:
        """Move the threshold after a step with or without idle time."""
        limit = self.config.switch_threshold_release_steps
        self.idle_steps = min(self.idle_steps + 1, limit) if had_idle else 0
        self.calm_steps = 0 if had_idle else min(self.calm_steps + 1, limit)
        if self.idle_steps >= limit:
            self.ratio = min(1.0, self.ratio + self.config.switch_threshold_step_up)
        elif self.calm_steps >= limit:
            lowest = self.mini_batch_size / self.train_batch_size
            self.ratio = max(lowest, self.ratio - self.config.switch_threshold_step_down)

    def decide(self, num_sampleable: int, is_last_step: bool) -> tuple[bool, dict[str, float]]:
        """Whether to lend the devices for the next step, and the metrics separate_async/* that say why."""
        remaining = max(0, self.threshold - num_sampleable)
        seconds = self.wait_seconds / self.num_waited if self.num_waited else None
        cost = self._cost()
        benefit = None if seconds is None else remaining * seconds * (1 - 1 / self.scaling_factor)
        lend = not is_last_step and remaining > 0 and (benefit is None or cost is None or benefit > cost)
        metrics = {
            "separate_async/decision/sampleable_count": float(num_sampleable),
            "separate_async/decision/remaining": float(remaining),
            "separate_async/decision/should_switch_to_rollout": float(lend),
        }
        if seconds is not None:
            metrics["separate_async/decision/per_sample_time_seconds"] = seconds
        if cost is not None:
            metrics["separate_async/decision/effective_switch_cost_seconds"] = cost
        return lend, metrics

    def _cost(self) -> float | None:
        means = [sum(costs) / len(costs) for costs in self.costs.values() if costs]
        return sum(means) if len(means) == len(self.costs) else None


class HybridRollout:
    """The extra servers: in the pool while lent, asleep while the trainer computes."""

    def __init__(
        self,
        policy: SwitchPolicy,
        servers: LLMServerManager,
        checkpoint_manager: CheckpointEngineManager,
        pool: GlobalRequestLoadBalancer,
    ) -> None:
        self.policy = policy
        self.servers = servers
        self.checkpoint_manager = checkpoint_manager
        self.pool = pool
        self.is_lent = False
        self._names = {f"hybrid-{rank}": server for rank, server in enumerate(servers.get_replicas())}

    def lend(self, global_steps: int) -> float:
        """Give the servers the weights and put them into the pool; returns the seconds it took."""
        return self._timed("to_rollout", lambda: self._lend(global_steps))

    def take_back(self) -> float:
        """Out of the pool; what they had in flight is aborted and goes on elsewhere. Returns the seconds it took."""
        return self._timed("to_trainer", self._take_back)

    def close(self) -> None:
        self.servers.close()

    def _timed(self, direction: str, action: Callable[[], None]) -> float:
        began = time.perf_counter()
        action()
        seconds = time.perf_counter() - began
        self.policy.costs[direction].append(seconds)
        return seconds

    def _lend(self, global_steps: int) -> None:
        self.checkpoint_manager.update_weights(global_steps)
        self.checkpoint_manager.resume_generation_replicas()
        self.pool.add_servers(self._names)
        self.pool.clear_sticky_cache()  # conversations spread over the larger pool
        self.is_lent = True

    def _take_back(self) -> None:
        self.pool.remove_servers(self._names)
        self.checkpoint_manager.abort_replicas(reject_request=True)
        self.checkpoint_manager.sleep_replicas()
        self.is_lent = False
