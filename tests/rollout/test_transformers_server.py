"""The server's thread: who joins when, and that nobody is left waiting, whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from kitlib.rollout import LLMServer, RolloutError, ServerClosedError, TokenOutput, TransformersServer
from tests.rollout.conftest import VOCAB, greedy, make_model, random_prompts

GREEDY = {"temperature": 0.0}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def start() -> Iterator[Callable[..., TransformersServer]]:
    servers = []

    def starter(model: PreTrainedModel | None = None, **options: Any) -> TransformersServer:
        options = {"eos_token_id": None, "max_model_len": 128} | options
        servers.append(TransformersServer(model or make_model(), **options))
        return servers[-1]

    yield starter
    for server in servers:
        server.close()


class Steps:
    """Lets the engine of `server` make one step at a time, so that a test decides what happens between two tokens.

    The server's thread stops at a gate before each step. Whoever has awaited `take` or `between` knows that it stands
    there: mail that arrives now is read after the next step, not before.
    """

    def __init__(self, server: TransformersServer) -> None:
        self._server = server
        self._allowed = threading.Semaphore(0)
        self._at_gate = threading.Event()
        step = server._engine.step

        def gated() -> list:
            self._at_gate.set()
            while not self._allowed.acquire(timeout=0.05):
                if server._closing:  # a failed test must end too
                    return []
            return step()

        server._engine.step = gated  # type: ignore[method-assign]

    async def take(self, num_steps: int) -> None:
        """Let it make `num_steps`, and come back to the gate: some request must have work left."""
        await self._stand_at_gate()
        for _ in range(num_steps):
            self._at_gate.clear()
            self.allow(1)
            await self._stand_at_gate()

    async def between(self, verb: Callable[..., Any], *args: Any) -> Any:
        """Call `verb` of the server while it is about to make a step, let it make this one, and wait for the verb."""
        calling = asyncio.ensure_future(asyncio.to_thread(verb, *args))
        await self.until(lambda: self._server._verbs)
        self.allow(1)
        return await calling

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    def allow(self, num_steps: int = 1000) -> None:
        self._allowed.release(num_steps)

    async def _stand_at_gate(self) -> None:
        assert await asyncio.to_thread(self._at_gate.wait, 60), "the server's thread did not come to the next step"


async def generate(
    server: TransformersServer, prompt: list[int], max_tokens: int, name: str = "a", **params: Any
) -> TokenOutput:
    return await server.generate(prompt, GREEDY | {"max_tokens": max_tokens, "logprobs": True} | params, name)


def test_it_is_a_server(start: Callable[..., TransformersServer]) -> None:
    assert isinstance(start(), LLMServer)


# ---- joining and leaving -------------------------------------------------------------------------------------------


def test_requests_of_several_event_loops_are_answered(
    start: Callable[..., TransformersServer], qwen3: PreTrainedModel
) -> None:
    server, prompts = start(max_num_seqs=8), random_prompts(24)
    outputs: dict[int, TokenOutput] = {}

    async def session(i: int) -> None:
        await asyncio.sleep(0.001 * (i % 5))
        outputs[i] = await generate(server, prompts[i], 1 + i % 7, name=str(i))

    async def sessions(mine: range) -> None:
        await asyncio.gather(*(session(i) for i in mine))

    threads = [threading.Thread(target=lambda mine=range(k, 24, 3): asyncio.run(sessions(mine))) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, prompt in enumerate(prompts):
        assert outputs[i].token_ids == greedy(qwen3, prompt, 1 + i % 7)


def test_sessions_that_start_together_join_together(start: Callable[..., TransformersServer]) -> None:
    server = start()
    batches: list[int] = []
    step = server._engine.step
    server._engine.step = lambda: (batches.append(len(server._engine.waiting)), step())[1]  # type: ignore[method-assign]

    async def session(i: int) -> None:
        await asyncio.sleep(0)  # as a session that did something else first
        await generate(server, [i % VOCAB], 3, name=str(i))

    async def main() -> None:
        await asyncio.gather(*(session(i) for i in range(100)))

    asyncio.run(main())
    assert batches == [100, 0, 0]


def test_one_wake_up_of_the_loop_a_step(start: Callable[..., TransformersServer]) -> None:
    server = start()
    wake_ups = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: (wake_ups.append(args), wake(*args))[1]  # type: ignore[method-assign]
        await asyncio.gather(*(generate(server, [i], 1 + i % 2, name=str(i)) for i in range(20)))

    asyncio.run(main())
    assert len(wake_ups) == 2


def test_a_request_joins_between_two_tokens_of_another(
    start: Callable[..., TransformersServer], qwen3: PreTrainedModel
) -> None:
    server = start()
    steps = Steps(server)

    async def main() -> None:
        first = asyncio.ensure_future(generate(server, [1, 2, 3], 8, name="first"))
        await steps.take(3)
        second = asyncio.ensure_future(generate(server, [4, 5], 2, name="second"))
        await steps.until(lambda: server._arrivals)
        await steps.take(3)  # one without the second, and its two
        assert (await second).token_ids == greedy(qwen3, [4, 5], 2)
        assert not first.done()
        steps.allow()
        assert (await first).token_ids == greedy(qwen3, [1, 2, 3], 8)

    asyncio.run(main())


def test_a_cancelled_request_gives_its_row_back(start: Callable[..., TransformersServer]) -> None:
    server = start()
    steps = Steps(server)

    async def main() -> None:
        given_up = asyncio.ensure_future(generate(server, [1, 2], 100, name="given up"))
        stays = asyncio.ensure_future(generate(server, [3], 5, name="stays"))
        await steps.take(2)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        steps.allow()
        assert len((await stays).token_ids) == 5

    asyncio.run(main())
    assert server._engine.num_active == 0
    assert not server._unanswered


def test_the_same_order_of_arrival_gives_the_same_tokens(start: Callable[..., TransformersServer]) -> None:
    def run(seed: int, pause: float) -> list[list[int]]:
        server = start(seed=seed)

        async def session(i: int) -> list[int]:
            await asyncio.sleep(pause * i)  # alone or together: the order is the same
            return (await generate(server, [i], 6, name=str(i), temperature=1.0)).token_ids

        async def main() -> list[list[int]]:
            return await asyncio.gather(*(session(i) for i in range(6)))

        return asyncio.run(main())

    assert run(1, 0.0) == run(1, 0.004)
    assert run(1, 0.0) != run(2, 0.0)


def test_a_seed_of_the_request_fixes_its_draws(start: Callable[..., TransformersServer]) -> None:
    server = start()

    async def main() -> None:
        first = await generate(server, [1], 8, temperature=1.0, seed=5)
        again = await generate(server, [1], 8, name="b", temperature=1.0, seed=5)
        other = await generate(server, [1], 8, name="c", temperature=1.0, seed=6)
        assert first.token_ids == again.token_ids != other.token_ids

    asyncio.run(main())


# ---- budgets and bad requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "prompt_length", "expected"),
    [
        ({}, 4, 12),  # all that max_model_len leaves
        ({"response_length": 5}, 4, 5),
        ({"prompt_length": 6, "response_length": 5}, 4, 5),
        ({"prompt_length": 6, "response_length": 5}, 9, 2),  # a later turn: what is left of the response
        ({"prompt_length": 6, "response_length": 5}, 14, 1),  # never below one, as in verl
    ],
)
def test_the_budget_without_max_tokens(
    start: Callable[..., TransformersServer], options: dict, prompt_length: int, expected: int
) -> None:
    server = start(max_model_len=16, **options)
    output = asyncio.run(server.generate([1] * prompt_length, GREEDY, "a"))
    assert len(output.token_ids) == expected
    assert output.stop_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "request 'a': a prompt of 0 tokens, expected 1 to 127"),
        ([1] * 128, "request 'a': a prompt of 128 tokens.*max_model_len"),
        ([1, VOCAB], f"request 'a': token id {VOCAB} is outside the model's vocabulary of {VOCAB}"),
        ([-1], "token id -1"),
    ],
)
def test_a_bad_prompt_is_refused_and_harms_nobody(
    start: Callable[..., TransformersServer], prompt: list[int], message: str
) -> None:
    server = start()

    async def main() -> None:
        good = asyncio.ensure_future(generate(server, [1], 3, name="good"))
        with pytest.raises(RolloutError, match=message):
            await generate(server, prompt, 3)
        assert len((await good).token_ids) == 3

    asyncio.run(main())


# ---- abort, sleep, weights -----------------------------------------------------------------------------------------


def test_abort_answers_with_what_was_made_and_pauses(
    start: Callable[..., TransformersServer], qwen3: PreTrainedModel
) -> None:
    server = start(max_num_seqs=1)
    steps = Steps(server)

    async def main() -> None:
        started = asyncio.ensure_future(generate(server, [1, 2], 8, name="started"))
        queued = asyncio.ensure_future(generate(server, [3], 8, name="queued"))
        await steps.take(3)
        assert await steps.between(server.abort_all_requests) == 2
        made = await started
        assert made.stop_reason == "aborted"
        assert made.token_ids == greedy(qwen3, [1, 2], 8)[: len(made.token_ids)]
        assert len(made.token_ids) == len(made.log_probs) == 4
        assert (await queued).token_ids == []
        steps.allow()
        late = asyncio.ensure_future(generate(server, [4], 2, name="late"))
        await asyncio.sleep(0.02)
        assert not late.done()
        server.resume_generation()
        assert (await late).token_ids == greedy(qwen3, [4], 2)

    asyncio.run(main())


def test_a_server_that_rejects_answers_late_requests_at_once(start: Callable[..., TransformersServer]) -> None:
    server = start()
    server.abort_all_requests(reject_request=True)
    output = asyncio.run(generate(server, [1], 5))
    assert (output.token_ids, output.stop_reason) == ([], "aborted")
    server.resume_generation()
    assert len(asyncio.run(generate(server, [1], 5)).token_ids) == 5


def test_sleep_frees_the_cache_and_keeps_requests_waiting(start: Callable[..., TransformersServer]) -> None:
    server = start()

    async def main() -> None:
        await generate(server, [1], 2)
        assert server._engine.runner.cache.layers
        server.sleep()
        assert not server._engine.runner.cache.layers
        waiting = asyncio.ensure_future(generate(server, [1], 2))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        server.wake_up()
        assert len((await waiting).token_ids) == 2

    asyncio.run(main())


def test_sleep_is_refused_while_decoding(start: Callable[..., TransformersServer]) -> None:
    server = start()
    steps = Steps(server)

    async def main() -> None:
        running = asyncio.ensure_future(generate(server, [1], 50))
        await steps.take(2)
        with pytest.raises(RolloutError, match="cannot sleep while it decodes 1 requests.*abort_all_requests"):
            await steps.between(server.sleep)
        steps.allow()
        assert len((await running).token_ids) == 50

    asyncio.run(main())


def test_weights_change_between_two_tokens(start: Callable[..., TransformersServer]) -> None:
    server, other = start(global_steps=1), make_model(seed=1)
    steps = Steps(server)

    async def main() -> None:
        running = asyncio.ensure_future(generate(server, [1, 2], 20))
        await steps.take(2)
        await steps.between(server.update_weights, other.state_dict(), 2)
        steps.allow()
        fields = (await running).extra_fields
        assert (fields["min_global_steps"], fields["max_global_steps"]) == (1, 2)
        after = await generate(server, [1, 2], 5, name="b")
        assert after.token_ids == greedy(other, [1, 2], 5)
        assert after.extra_fields["min_global_steps"] == 2

    asyncio.run(main())
    assert server.global_steps == 2


def test_weights_that_do_not_fit_are_refused_and_the_server_lives(start: Callable[..., TransformersServer]) -> None:
    server = start(global_steps=1)
    with pytest.raises(RolloutError, match="weights of version 2 do not fit"):
        server.update_weights({}, 2)
    assert server.global_steps == 1
    assert len(asyncio.run(generate(server, [1], 3)).token_ids) == 3


# ---- the end -------------------------------------------------------------------------------------------------------


def test_an_exception_in_the_thread_reaches_everyone(start: Callable[..., TransformersServer]) -> None:
    server = start(max_num_seqs=2)
    failure = ZeroDivisionError("planted")
    calls = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            raise failure
        return model_forward(*args, **kwargs)

    model_forward, server._engine.runner.forward = server._engine.runner.forward, forward  # type: ignore[method-assign]

    async def main() -> None:
        requests = [generate(server, [i], 10, name=str(i)) for i in range(5)]  # two are decoding, three wait
        outcomes = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 100)
        assert outcomes == [failure] * 5
        with pytest.raises(ZeroDivisionError, match="planted"):
            await asyncio.wait_for(generate(server, [1], 1), 100)

    asyncio.run(main())
    for verb in (server.wake_up, server.sleep, server.resume_generation, server.abort_all_requests):
        with pytest.raises(ZeroDivisionError, match="planted"):
            verb()
    server.close()


def test_a_failure_while_a_batch_joins_reaches_that_batch(start: Callable[..., TransformersServer]) -> None:
    """The requests have left the queue by then and are in no row yet."""
    server = start()

    def prefill(rows: slice) -> Any:
        raise MemoryError("planted")

    server._engine._prefill = prefill  # type: ignore[method-assign]

    async def main() -> None:
        requests = [generate(server, [i], 10, name=str(i)) for i in range(3)]
        outcomes = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 100)
        assert [type(outcome) for outcome in outcomes] == [MemoryError] * 3

    asyncio.run(main())


def test_close_ends_the_thread_and_tells_those_who_wait(start: Callable[..., TransformersServer]) -> None:
    server = start()

    async def main() -> None:
        server.abort_all_requests()  # paused, so that the request waits
        waiting = asyncio.ensure_future(generate(server, [1], 5))
        await asyncio.sleep(0.01)
        server.close()
        with pytest.raises(ServerClosedError, match="is closed"):
            await asyncio.wait_for(waiting, 100)
        with pytest.raises(ServerClosedError):
            await generate(server, [1], 5)

    asyncio.run(main())
    with pytest.raises(ServerClosedError):
        server.wake_up()
    server.close()
    assert not server._thread.is_alive()


SCRIPT = """
import asyncio, sys, torch
torch.set_num_threads(1)
from kitlib.rollout import TransformersServer
from tests.rollout.conftest import make_model
server = TransformersServer(make_model(), None, 200)
steps, step = [], server._engine.step
server._engine.step = lambda: (steps.append(1), step())[1]
async def main():
    requests = [server.generate([i % 40], {"max_tokens": 190}, str(i)) for i in range(64)]
    async def say():
        while not steps:
            await asyncio.sleep(0.001)
        print("decoding", flush=True)
        if sys.argv[1] == "leave":
            raise SystemExit(3)
        await asyncio.sleep(3600)
    await asyncio.gather(say(), *requests)
asyncio.run(main())
"""


@pytest.mark.parametrize(("how", "code"), [("leave", 3), ("interrupt", -signal.SIGINT)])
def test_the_interpreter_ends_in_the_middle_of_a_step(how: str, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, how],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "decoding\n"
        if how == "interrupt":
            process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    finally:
        process.kill()
    assert process.returncode == code, stderr
    assert "Fatal" not in stderr
    assert "Exception ignored" not in stderr


def test_importing_the_room_does_not_import_transformers() -> None:
    script = "import sys, kitlib.rollout; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_runs_on_a_gpu(start: Callable[..., TransformersServer], qwen3: PreTrainedModel) -> None:
    server = start(device="cuda")

    async def main() -> None:
        prompts = random_prompts(8)
        outputs = await asyncio.gather(*(generate(server, p, 10, name=str(i)) for i, p in enumerate(prompts)))
        assert [output.token_ids for output in outputs] == [greedy(qwen3, prompt, 10) for prompt in prompts]

    asyncio.run(main())
