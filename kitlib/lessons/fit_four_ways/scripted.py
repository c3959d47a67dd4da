"""A server and a worker that take as long as a script says and compute nothing.

So what a mode of the trainer makes of given times of generation and training can be measured on any machine, two shared
cores included. The server decodes as a GPU does: one token for every row in each step, whose time hardly depends on the
number of rows, so that a few long responses keep it busy alone. Lengths have a long tail and belong to the prompt and
to the number of the session, so that every mode gets the same work. The worker takes a time for each row.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.rollout import GlobalRequestLoadBalancer, TokenOutput
from kitlib.rollout.protocol import ServerClosedError
from kitlib.rollout.request_log import RequestLog
from kitlib.rollout.tickets import answer
from kitlib.workers.actor import RESPONSE_COLUMNS
from kitlib.workers.bridge import fetches
from kitlib.workers.rows import SEQUENCE_COLUMNS


@dataclass(frozen=True)
class Script:
    """Times in seconds."""

    longest: int = 240  # tokens of a response at most
    tail: float = 0.05  # share of sessions in the long tail
    step: float = 6e-3  # of a decode step
    row: float = 4e-5  # of each row in it
    train_row: float = 11e-3  # of a row in training, old log-prob and update together
    sync: float = 0.02  # of a weight sync

    def length(self, prompt_ids: Sequence[int], session: int) -> int:
        """Tokens of the k-th response to a prompt: 10 to 40, and in the tail up to the longest."""
        draw = random.Random(repr((list(prompt_ids), session)))
        if draw.random() < self.tail:
            return draw.randint(self.longest // 2, self.longest)
        return draw.randint(10, 40)


@dataclass(eq=False)
class _Row:
    """A request that is being decoded."""

    request_id: str
    prompt_ids: Sequence[int]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[TokenOutput]
    num_left: int
    num_made: int = 0
    versions: list[int] = field(default_factory=list)

    def output(self, stop_reason: Any, now: int) -> TokenOutput:
        versions = self.versions or [now]
        extra = {"global_steps": versions[-1], "min_global_steps": versions[0], "max_global_steps": versions[-1]}
        made = self.num_made
        return TokenOutput([1] * made, [-0.5] * made, stop_reason, 0, {**extra, "num_cached_tokens": 0})


class ScriptedServer:
    """An LLMServer that decodes on a thread of its own, without a model."""

    def __init__(self, script: Script, name: str = "server-0") -> None:
        self.script = script
        self.global_steps = 0
        self.request_log = RequestLog(name)
        self._sessions: Counter[tuple[int, ...]] = Counter()
        self._num_left: dict[str, int] = {}  # tokens of requests that were aborted, by request_id
        self._waiting: deque[_Row] = deque()
        self._active: list[_Row] = []
        self._serving, self._closing = True, False
        self._change = threading.Condition()  # guards all of the above
        self._thread = threading.Thread(target=self._run, name=f"kitlib-scripted-{name}", daemon=True)
        self._thread.start()

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str
    ) -> TokenOutput:
        loop = asyncio.get_running_loop()
        with self._change:
            if request_id not in self._num_left:
                self._num_left[request_id] = self.script.length(prompt_ids, self._sessions[tuple(prompt_ids)])
                self._sessions[tuple(prompt_ids)] += 1
            num_left = min(self._num_left[request_id], sampling_params["max_tokens"])
            row = _Row(request_id, prompt_ids, loop, loop.create_future(), num_left)
            self._waiting.append(row)
            self._change.notify()
        return await row.future

    def update_weights(self, state_dict: Mapping[str, Tensor], global_steps: int) -> None:
        time.sleep(self.script.sync)
        with self._change:
            self.global_steps = global_steps

    def abort_all_requests(self, reject_request: bool = False) -> int:
        with self._change:
            self._serving = False
            rows, self._active, waiting, self._waiting = self._active, [], self._waiting, deque()
            self._finish([*rows, *waiting], "aborted")
            return len(rows)

    def resume_generation(self) -> None:
        with self._change:
            self._serving = True
            self._change.notify()

    def sleep(self) -> None:
        with self._change:
            self._serving = False

    wake_up = resume_generation

    def close(self) -> None:
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    def _run(self) -> None:
        due = 0.0  # when the step that runs is over; a late step is made up for by the next ones
        while True:
            with self._change:
                if not (self._serving and (self._waiting or self._active)):
                    self._change.wait_for(lambda: self._closing or (self._serving and (self._waiting or self._active)))
                    due = time.perf_counter()
                if self._closing:
                    break
                joining, self._waiting = list(self._waiting), deque()
                self._active += joining
                self.request_log.begin(joining)  # type: ignore[arg-type]
                rows = list(self._active)
            due += self.script.step + len(rows) * self.script.row
            time.sleep(max(0.0, due - time.perf_counter()))
            with self._change:
                if self._serving:
                    self._decode([row for row in rows if row in self._active])
        self.request_log.end_all()
        answer([(row, ServerClosedError("closed")) for row in [*self._active, *self._waiting]])  # type: ignore[misc]

    def _decode(self, rows: Sequence[_Row]) -> None:
        for row in rows:
            row.num_made += 1
            row.num_left -= 1
            row.versions.append(self.global_steps)
        done = [row for row in rows if row.num_left <= 0]
        self._active = [row for row in self._active if row.num_left > 0]
        self._finish(done, "completed")

    def _finish(self, rows: Sequence[_Row], reason: str) -> None:
        outputs = [(row, row.output(reason, self.global_steps)) for row in rows]
        self._num_left |= {row.request_id: row.num_left for row in rows}
        self.request_log.end(outputs)  # type: ignore[arg-type]
        answer(outputs)  # type: ignore[arg-type]


class ScriptedWorker:
    """An actor that sleeps: a fifth of the time of a row for its old log-probs, the rest for the update."""

    dp_size = 1

    def __init__(self, script: Script) -> None:
        self.script = script

    @fetches(*SEQUENCE_COLUMNS)
    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        self._take(0.2, data)
        nothing = torch.zeros_like(data["input_ids"], dtype=torch.float32)
        return TensorDict({"log_probs": nothing, "entropy": nothing.clone()}, batch_size=[len(data)])

    @fetches(*SEQUENCE_COLUMNS, *RESPONSE_COLUMNS)
    def update_actor(self, data: TensorDict) -> dict[str, float]:
        self._take(0.8, data)
        return {"actor/pg_loss": 0.0}

    def state_dict_for_rollout(self) -> dict[str, Tensor]:
        return {}

    def save_weights(self, name: str) -> None: ...

    def restore_weights(self, name: str) -> None: ...

    def _take(self, share: float, data: TensorDict) -> None:
        time.sleep(share * self.script.train_row * len(data))


def put_in_place(trainer: Any, script: Script) -> None:
    """Give a trainer that was started a scripted server and a scripted worker instead of its own."""
    real = trainer.actor_rollout_wg.worker
    worker = ScriptedWorker(script)
    worker.close = real.close  # type: ignore[attr-defined]  # the real one holds the process group
    trainer.actor_rollout_wg.worker = trainer.worker = worker
    manager = trainer.parts.llm_server_manager
    manager.close()
    server = ScriptedServer(script)
    manager.replicas[:] = trainer.checkpoint_manager.replicas[:] = [server]
    balancer: GlobalRequestLoadBalancer = manager.global_load_balancer
    balancer.remove_servers(["server-0"])
    balancer.add_servers({"server-0": server})
