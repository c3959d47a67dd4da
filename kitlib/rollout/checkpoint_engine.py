"""Weight sync: what the trainer tells the rollout servers between two phases.

verl 0.9.1: checkpoint_engine/base.py, CheckpointEngineManager. Left out: process groups and bucketed transfer (NCCL,
NIXL): actor and servers share this process, so a state dict is enough; freeing the KV cache without sleeping.

Who calls what, in verl's trainers:
    sync             sample -> sleep_replicas -> train -> update_weights
    colocate_async   sample -> abort_replicas, sleep_replicas -> train -> update_weights, resume_generation_replicas
    separate_async   every few steps: update_weights, with a backend other than "naive"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from kitlib.rollout.protocol import LLMServer


class WeightSource(Protocol):
    """The training side: `kitlib.workers.LocalWorkerGroup` or a worker."""

    def state_dict_for_rollout(self) -> Mapping[str, Tensor]:
        """Full weights under the names of the Hugging Face model."""
        ...


class CheckpointEngineManager:
    """Carries weights from `actor_wg` to `replicas`, and speaks to all replicas at once.

    `backend` is rollout.checkpoint_engine.backend. "naive": the replicas are asleep or idle, they get the weights and
    wake up. Any other: they are serving, so requests in flight are aborted, and resumed by clients that can (partial
    rollout).
    """

    def __init__(self, actor_wg: WeightSource, replicas: Sequence[LLMServer], backend: str = "naive") -> None:
        self.actor_wg = actor_wg
        self.replicas = list(replicas)
        self.backend = backend
        self._global_steps = 0

    def update_weights(self, global_steps: int | None = None) -> None:
        """Give every replica the actor's weights as version `global_steps` (None: the version stays) and leave it
        serving."""
        if global_steps is not None:
            self._global_steps = global_steps
        state_dict = self.actor_wg.state_dict_for_rollout()
        if self.backend != "naive":
            self.abort_replicas()
        for replica in self.replicas:
            replica.update_weights(state_dict, self._global_steps)
        if self.backend == "naive":
            self.wake_up_replicas()
        else:
            self.resume_generation_replicas()

    def sleep_replicas(self) -> None:
        """Free the KV caches. RolloutError if a replica is still decoding."""
        for replica in self.replicas:
            replica.sleep()

    def wake_up_replicas(self) -> None:
        for replica in self.replicas:
            replica.wake_up()

    def abort_replicas(self, reject_request: bool = False) -> None:
        """End all requests with what they have; requests that come later wait, or are answered "aborted" if
        `reject_request`."""
        for replica in self.replicas:
            replica.abort_all_requests(reject_request)

    def resume_generation_replicas(self) -> None:
        for replica in self.replicas:
            replica.resume_generation()

    def add_replicas(self, replicas: Sequence[LLMServer]) -> None:
        self.replicas.extend(replicas)

    def remove_replicas(self, replicas: Sequence[LLMServer]) -> None:
        leaving = {id(replica) for replica in replicas}
        self.replicas = [replica for replica in self.replicas if id(replica) not in leaving]
