"""Starts the rollout servers that the config asks for, and hands out clients to them.

verl 0.9.1: workers/rollout/llm_server.py, LLMServerManager, and the class lookup of workers/rollout/replica.py.
Left out: resource pools, Prometheus, profiling; a replica is one server of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from kitlib.rollout.balancer import GlobalRequestLoadBalancer
from kitlib.rollout.client import LLMServerClient
from kitlib.rollout.protocol import LLMServer, RolloutError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Client = TypeVar("Client", bound=LLMServerClient)
LoadModel = Callable[[], "PreTrainedModel"]


class LLMServerManager:
    """The servers of `config.actor_rollout_ref.rollout` and the balancer in front of them.

    There are as many as verl would start: the devices of the rollout (nnodes * n_gpus_per_node of `rollout`, or of
    `trainer` when rollout.nnodes is 0 and actor and rollout share them) divided by tensor_model_parallel_size.

    `load_model` makes the model of one replica; by default it is loaded from actor_rollout_ref.model.path. A server
    owns its model, so it must return a new one each time.
    """

    def __init__(self, config: Any, tokenizer: PreTrainedTokenizerBase, load_model: LoadModel | None = None) -> None:
        rollout = config.actor_rollout_ref.rollout
        start = _server_starter(rollout.name)
        self.config = config
        self.replicas: list[LLMServer] = []
        try:
            for rank in range(_num_replicas(config)):
                self.replicas.append(start(config, tokenizer, load_model, rank))
        except BaseException:
            self.close()
            raise
        self.global_load_balancer = GlobalRequestLoadBalancer(
            {f"server-{rank}": replica for rank, replica in enumerate(self.replicas)},
            full_determinism=rollout.full_determinism,
        )

    def get_client(self, client_cls: type[Client] = LLMServerClient, **kwargs: Any) -> Client:  # type: ignore[assignment]
        """A client of all replicas. `kwargs` go to `client_cls`, for example FullyAsyncLLMServerClient's
        response_length."""
        return client_cls(self.global_load_balancer, **kwargs)

    def get_replicas(self) -> list[LLMServer]:
        return self.replicas

    def state_dict(self) -> list[int | None]:
        """Where the random draws of each replica stand, for a checkpoint; None for a server that does not say."""
        return [getattr(replica, "num_arrivals", None) for replica in self.replicas]

    def load_state_dict(self, state: Sequence[int | None]) -> None:
        """Let the draws go on where they stood. Replicas beyond the saved ones begin from their seed."""
        for replica, num_arrivals in zip(self.replicas, state, strict=False):
            if num_arrivals is not None and hasattr(replica, "num_arrivals"):
                replica.num_arrivals = num_arrivals

    def close(self) -> None:
        """End all servers. May be called twice."""
        for replica in self.replicas:
            replica.close()


def _num_replicas(config: Any) -> int:
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    num_devices = rollout.nnodes * rollout.n_gpus_per_node or trainer.nnodes * trainer.n_gpus_per_node
    num_replicas, rest = divmod(num_devices, rollout.tensor_model_parallel_size)
    if rest or not num_replicas:
        raise RolloutError(
            f"{num_devices} rollout devices do not divide into replicas of {rollout.tensor_model_parallel_size}: "
            "change actor_rollout_ref.rollout.tensor_model_parallel_size or the number of devices"
        )
    return num_replicas


StartServer = Callable[[Any, "PreTrainedTokenizerBase", "LoadModel | None", int], LLMServer]


def _server_starter(name: str) -> StartServer:
    if name in ("transformers", "hf"):
        return _start_transformers_server
    raise RolloutError(f"actor_rollout_ref.rollout.name is {name!r}: expected transformers or hf")


def _start_transformers_server(
    config: Any, tokenizer: PreTrainedTokenizerBase, load_model: LoadModel | None, rank: int
) -> LLMServer:
    from kitlib.models import load_causal_lm
    from kitlib.rollout.transformers_server import TransformersServer

    rollout = config.actor_rollout_ref.rollout
    if load_model is None:
        model = load_causal_lm(config.actor_rollout_ref.model.path, dtype=getattr(torch, rollout.dtype))
    else:
        model = load_model()
    return TransformersServer(
        model,
        eos_token_ids(model, tokenizer),
        rollout.max_model_len or rollout.prompt_length + rollout.response_length,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        prompt_length=rollout.prompt_length,
        response_length=rollout.response_length,
        device=device_of(config.trainer.device, rank),
        seed=rollout.seed + rank,
        name=f"server-{rank}",
    )


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that end a response: the tokenizer's and those of the model's generation config, as vLLM takes them."""
    generation = getattr(model, "generation_config", None)
    more = getattr(generation, "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])} - {None}
    return sorted(ids)


def device_of(name: str, rank: int = 0) -> torch.device:
    """The device that `trainer.device` (auto, cpu or cuda) gives to a replica or worker."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name, rank % torch.cuda.device_count()) if name == "cuda" else torch.device(name)
