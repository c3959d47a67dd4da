"""Which server gets a request, and how an aborted one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from torch import Tensor

from kitlib.rollout import (
    CheckpointEngineManager,
    FullyAsyncLLMServerClient,
    GlobalRequestLoadBalancer,
    LLMServer,
    LLMServerClient,
    RolloutError,
    TokenOutput,
)


class FakeServer:
    """Says its script, one output a request; logs what it was asked."""

    def __init__(self, script: Sequence[TokenOutput | Exception] = ()) -> None:
        self.script = list(script)
        self.calls: list[Any] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str
    ) -> TokenOutput:
        self.calls.append((list(prompt_ids), dict(sampling_params), request_id))
        await asyncio.sleep(0)
        output = self.script.pop(0) if self.script else TokenOutput([0], stop_reason="length")
        if isinstance(output, Exception):
            raise output
        return output

    def update_weights(self, state_dict: Mapping[str, Tensor], global_steps: int) -> None:
        self.calls.append(("update_weights", state_dict, global_steps))

    def abort_all_requests(self, reject_request: bool = False) -> int:
        self.calls.append(("abort", reject_request))
        return 0

    def resume_generation(self) -> None:
        self.calls.append("resume")

    def sleep(self) -> None:
        self.calls.append("sleep")

    def wake_up(self) -> None:
        self.calls.append("wake_up")

    def close(self) -> None:
        self.calls.append("close")


def test_the_fake_is_a_server() -> None:
    assert isinstance(FakeServer(), LLMServer)


# ---- the balancer --------------------------------------------------------------------------------------------------


def make_balancer(**options: Any) -> GlobalRequestLoadBalancer:
    return GlobalRequestLoadBalancer({name: FakeServer() for name in ("s0", "s1", "s2")}, **options)


def test_a_new_conversation_goes_to_the_least_loaded_server() -> None:
    balancer = make_balancer()
    assert [balancer.acquire_server(f"r{i}")[0] for i in range(4)] == ["s0", "s1", "s2", "s0"]
    balancer.release_server("s1")
    assert balancer.acquire_server("r4")[0] == "s1"
    assert balancer.get_status() == {"s0": 2, "s1": 1, "s2": 1}
    assert balancer.get_total_inflight() == 4


def test_a_conversation_stays_where_it_is_until_its_server_leaves() -> None:
    balancer = make_balancer()
    assert [balancer.acquire_server("r")[0] for _ in range(3)] == ["s0"] * 3  # though the others are idle
    balancer.remove_servers(["s0"])
    assert balancer.acquire_server("r")[0] == "s1"
    balancer.release_server("s0")  # a request that was in flight there
    assert balancer.get_status() == {"s1": 1, "s2": 0}
    balancer.clear_sticky_cache()
    assert balancer.acquire_server("r")[0] == "s2"


def test_the_longest_silent_conversation_is_forgotten_first() -> None:
    balancer = make_balancer(max_cache_size=2)
    for request_id in ("a", "b", "a", "c"):  # servers s0, s1, s0, s2; b is forgotten
        balancer.acquire_server(request_id)
    assert balancer.acquire_server("a")[0] == "s0"
    assert balancer.get_status() == {"s0": 3, "s1": 1, "s2": 1}
    balancer.release_server("s2")
    assert balancer.acquire_server("b")[0] == "s2"


def test_a_pool_may_be_empty_and_grow() -> None:
    balancer = GlobalRequestLoadBalancer({})
    with pytest.raises(RolloutError, match="request 'r': no server.*add_servers"):
        balancer.acquire_server("r")
    server = FakeServer()
    balancer.add_servers({"new": server})
    assert balancer.acquire_server("r") == ("new", server)


def test_full_determinism_ignores_the_load() -> None:
    choices = [[make_balancer(full_determinism=True).acquire_server(f"r{i}")[0] for i in range(9)] for _ in range(2)]
    assert choices[0] == choices[1]
    assert set(choices[0]) == {"s0", "s1", "s2"}


# ---- the plain client ----------------------------------------------------------------------------------------------


def ask(client: LLMServerClient, request_id: str = "r", **params: Any) -> TokenOutput:
    return asyncio.run(client.generate(request_id, prompt_ids=[1, 2], sampling_params=params))


def test_the_client_passes_on_and_releases() -> None:
    aborted = TokenOutput([5], [-0.5], "aborted")
    server = FakeServer([aborted, ValueError("planted")])
    balancer = GlobalRequestLoadBalancer({"s": server})
    client = LLMServerClient(balancer)
    assert ask(client, temperature=0.5) is aborted
    assert server.calls == [([1, 2], {"temperature": 0.5}, "r")]
    with pytest.raises(ValueError, match="planted"):
        ask(client)
    assert balancer.get_total_inflight() == 0


# ---- partial rollout -----------------------------------------------------------------------------------------------


def part(tokens: list[int], reason: Any, version: int, num_cached: int = 0) -> TokenOutput:
    versions = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), version)
    log_probs = [-float(token) for token in tokens]
    return TokenOutput(tokens, log_probs or None, reason, None, versions | {"num_cached_tokens": num_cached})


def test_an_aborted_request_is_resumed_and_joined() -> None:
    server = FakeServer(
        [part([], "aborted", 3), part([7, 8], "aborted", 3, 2), part([], "aborted", 4), part([9], "completed", 5, 4)]
    )
    client = FullyAsyncLLMServerClient(GlobalRequestLoadBalancer({"s": server}))
    params = {"max_tokens": 6, "logprobs": True}
    output = asyncio.run(client.generate("r", prompt_ids=[1, 2], sampling_params=params))
    assert output.token_ids == [7, 8, 9]
    assert output.log_probs == [-7.0, -8.0, -9.0]
    assert output.stop_reason == "completed"
    assert output.extra_fields == {
        "global_steps": 5,
        "min_global_steps": 3,
        "max_global_steps": 5,
        "num_cached_tokens": 2,
    }
    prompts = [prompt for prompt, _, _ in server.calls]
    assert prompts == [[1, 2], [1, 2], [1, 2, 7, 8], [1, 2, 7, 8]]
    assert [asked["max_tokens"] for _, asked, _ in server.calls] == [6, 6, 4, 4]  # the budget is one for all attempts
    assert params == {"max_tokens": 6, "logprobs": True}


@pytest.mark.parametrize(
    ("params", "response_length", "expected"),
    [({}, None, [None, None]), ({}, 8, [8, 6]), ({"max_tokens": 5}, 8, [5, 3]), ({"max_new_tokens": 5}, 8, [5, 3])],
)
def test_the_budget_of_a_resumed_request(params: dict, response_length: int | None, expected: list) -> None:
    server = FakeServer([part([7, 8], "aborted", 1), part([9], "length", 1)])
    client = FullyAsyncLLMServerClient(GlobalRequestLoadBalancer({"s": server}), response_length)
    ask(client, **params)
    assert [asked.get("max_tokens") for _, asked, _ in server.calls] == expected


def test_a_resumed_request_may_move_to_another_server() -> None:
    first = FakeServer([part([7], "aborted", 1)])
    second = FakeServer([part([8], "completed", 2)])
    balancer = GlobalRequestLoadBalancer({"first": first})

    async def main() -> TokenOutput:
        client = FullyAsyncLLMServerClient(balancer)
        asking = asyncio.ensure_future(client.generate("r", prompt_ids=[1], sampling_params={}))
        await asyncio.sleep(0)
        balancer.add_servers({"second": second})
        balancer.remove_servers(["first"])
        return await asking

    assert asyncio.run(main()).token_ids == [7, 8]


# ---- weight sync ---------------------------------------------------------------------------------------------------


class Actor:
    def state_dict_for_rollout(self) -> dict[str, Tensor]:
        return {}


def test_naive_sync_leaves_the_replicas_awake() -> None:
    replicas = [FakeServer(), FakeServer()]
    manager = CheckpointEngineManager(Actor(), replicas)
    manager.sleep_replicas()
    manager.update_weights(4)
    manager.update_weights()  # as after a colocated reward model: the version stays
    for replica in replicas:
        assert replica.calls == ["sleep", *(("update_weights", {}, 4), "wake_up") * 2]


def test_sync_of_a_serving_pool_aborts_and_resumes() -> None:
    replica = FakeServer()
    CheckpointEngineManager(Actor(), [replica], backend="nccl").update_weights(4)
    assert replica.calls == [("abort", False), ("update_weights", {}, 4), "resume"]


def test_the_pool_of_the_sync_may_change() -> None:
    stays, leaves, comes = FakeServer(), FakeServer(), FakeServer()
    manager = CheckpointEngineManager(Actor(), [stays, leaves])
    manager.remove_replicas([leaves])
    manager.add_replicas([comes])
    manager.abort_replicas(reject_request=True)
    manager.resume_generation_replicas()
    assert stays.calls == comes.calls == [("abort", True), "resume"]
    assert leaves.calls == []
