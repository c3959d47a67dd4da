"""From the config to servers that answer."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from kitlib.config import load_config
from kitlib.errors import KitError
from kitlib.rollout import CheckpointEngineManager, FullyAsyncLLMServerClient, LLMServerManager, RolloutError
from kitlib.rollout.manager import eos_token_ids
from tests.rollout.conftest import greedy, make_model

TOKENIZER: Any = SimpleNamespace(eos_token_id=7)


@pytest.fixture
def managers() -> Iterator[list[LLMServerManager]]:
    started: list[LLMServerManager] = []
    yield started
    for manager in started:
        manager.close()


def make_manager(managers: list, *overrides: str) -> LLMServerManager:
    sizes = ("data.max_prompt_length=20", "data.max_response_length=12", "trainer.device=cpu")
    manager = LLMServerManager(load_config([*sizes, *overrides]), TOKENIZER, make_model)
    managers.append(manager)
    return manager


def test_the_default_is_one_server_with_the_lengths_of_the_config(managers: list, qwen3: PreTrainedModel) -> None:
    manager = make_manager(managers)
    assert len(manager.get_replicas()) == 1
    request = manager.get_client().generate("r", prompt_ids=[1, 2], sampling_params={"temperature": 0.0})
    assert asyncio.run(request).token_ids == greedy(qwen3, [1, 2], 12, eos=7)
    too_long = manager.get_client().generate("r", prompt_ids=[1] * 32, sampling_params={})
    with pytest.raises(RolloutError, match="a prompt of 32 tokens"):
        asyncio.run(too_long)


@pytest.mark.parametrize(
    ("overrides", "num_replicas"),
    [
        (["trainer.n_gpus_per_node=2"], 2),  # colocated: on the trainer's devices
        (["actor_rollout_ref.rollout.nnodes=3", "actor_rollout_ref.rollout.n_gpus_per_node=1"], 3),  # its own
        (["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=2"], 1),
    ],
)
def test_the_number_of_replicas(managers: list, overrides: list[str], num_replicas: int) -> None:
    assert len(make_manager(managers, *overrides).replicas) == num_replicas


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
            "1 rollout devices do not divide into replicas of 2",
        ),
        ("actor_rollout_ref.rollout.name=sglang", "rollout.name is 'sglang': expected"),
    ],
)
def test_what_cannot_be_started_is_named(managers: list, override: str, message: str) -> None:
    with pytest.raises(KitError, match=message):
        make_manager(managers, override)


def test_a_server_that_fails_to_start_takes_the_others_down() -> None:
    loaded: list[PreTrainedModel] = []

    def load_model() -> PreTrainedModel:
        if loaded:
            raise RolloutError("planted")
        loaded.append(make_model())
        return loaded[0]

    config = load_config(["trainer.n_gpus_per_node=2", "trainer.device=cpu"])
    with pytest.raises(RolloutError, match="planted"):  # a thread left behind fails the test too
        LLMServerManager(config, TOKENIZER, load_model)


def test_partial_rollout_over_a_weight_sync(managers: list) -> None:
    """The whole path: a request is aborted by a weight sync, waits, and goes on with the new weights."""
    manager = make_manager(managers, "data.max_response_length=60")
    client = manager.get_client(FullyAsyncLLMServerClient, response_length=60)
    other = make_model(seed=1)
    actor: Any = SimpleNamespace(state_dict_for_rollout=other.state_dict)
    sync = CheckpointEngineManager(actor, manager.replicas, backend="nccl")
    make_no_more_steps_without_new_weights(manager.replicas[0], number=10)

    async def main() -> None:
        params = {"temperature": 0.0, "ignore_eos": True, "logprobs": True}
        asking = asyncio.ensure_future(client.generate("r", prompt_ids=[1, 2], sampling_params=params))
        while not manager.replicas[0]._engine.num_active:  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)
        await asyncio.to_thread(sync.update_weights, 1)
        output = await asking
        assert len(output.token_ids) == len(output.log_probs) == 60
        assert output.extra_fields["min_global_steps"] == 0
        assert output.extra_fields["max_global_steps"] == 1
        rest = next(
            i for i in range(61) if greedy(other, [1, 2, *output.token_ids[:i]], 60 - i) == output.token_ids[i:]
        )
        assert 0 < rest < 60  # what came after the sync is the new model's

    asyncio.run(main())


def make_no_more_steps_without_new_weights(server: Any, number: int) -> None:
    """Hold step `number` until the weights have changed or a verb waits, so that the request cannot end before."""
    engine, step, numbers = server._engine, server._engine.step, itertools.count()

    def held() -> list:
        if next(numbers) == number:
            while not (server._verbs or engine.global_steps or server._closing):
                time.sleep(0.001)
        return step()

    engine.step = held


def test_stop_ids_come_from_tokenizer_and_generation_config() -> None:
    def ids(configured: int | list[int] | None, tokenizer_id: int | None) -> list[int]:
        model: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=configured))
        tokenizer: Any = SimpleNamespace(eos_token_id=tokenizer_id)
        return eos_token_ids(model, tokenizer)

    assert ids(None, 3) == [3]
    assert ids(4, 3) == [3, 4]
    assert ids([3, 5], 3) == [3, 5]
    assert ids(5, None) == [5]


@pytest.mark.skipif(torch.cuda.is_available(), reason="auto takes the GPU where there is one")
def test_auto_is_the_cpu_without_a_gpu(managers: list) -> None:
    manager = make_manager(managers, "trainer.device=auto")
    assert manager.replicas[0]._engine.runner.device.type == "cpu"  # type: ignore[attr-defined]
