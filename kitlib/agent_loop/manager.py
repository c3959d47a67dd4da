"""AgentLoopManagerTQ: spreads prompts over agent loop workers that run beside the trainer.

verl 0.9.1: trainer/ppo/v1/agent_loop_tq.py, AgentLoopManagerTQ (workers are Ray actors there; here each is an event
loop on a background thread of its own).

    trainer thread      generate_sequences(batch) ──chunks──> returns at once          ... sample() waits on the queue
    kitlib-agent-loop-0                           prompt tasks, session tasks ──────────> rows and statuses in the queue
    kitlib-agent-loop-1                           ...

Differs from verl: `close` ends every task and thread; `ledger` says what runs and raises what failed.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tensordict import TensorDict

from kitlib.agent_loop.base import LLMClient
from kitlib.agent_loop.errors import AgentLoopError
from kitlib.agent_loop.ledger import TaskLedger
from kitlib.agent_loop.worker import AgentLoopWorkerTQ
from kitlib.reward import RewardLoopWorker
from kitlib.transfer_queue import QueueProtocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class AgentLoopManagerTQ:
    """Owns the workers, their threads and the ledger of their tasks. Use as a context manager or call `close`.

    Args:
        config: see AgentLoopWorkerTQ; `rollout.agent.num_workers` unless `num_workers` is given.
        tq: where trajectories and statuses go.
        llm_client: generates tokens; used from every worker's event loop.
        tokenizer: of the policy.
        reward_loop_worker_handles: score sessions as they end, worker i with handle i modulo their number; None or
            empty leaves the scoring to the trainer.
    """

    worker_class: type[AgentLoopWorkerTQ] = AgentLoopWorkerTQ

    def __init__(
        self,
        config: Any,
        tq: QueueProtocol,
        llm_client: LLMClient,
        tokenizer: PreTrainedTokenizerBase,
        reward_loop_worker_handles: Sequence[RewardLoopWorker] | None = None,
        num_workers: int | None = None,
    ) -> None:
        self.ledger = TaskLedger()
        self.reward_loop_worker_handles = list(reward_loop_worker_handles or ())
        handles: Sequence[RewardLoopWorker | None] = self.reward_loop_worker_handles or [None]
        num_workers = num_workers or config.actor_rollout_ref.rollout.agent.num_workers
        # Each worker encodes with a tokenizer of its own: padding and truncation are a state of the tokenizer, so one
        # that is shared would hand a call the settings of a call on another thread.
        self.workers = [
            self.worker_class(config, tq, llm_client, copy.deepcopy(tokenizer), handles[i % len(handles)], self.ledger)
            for i in range(num_workers)
        ]
        self._threads = [_LoopThread(f"kitlib-agent-loop-{i}", self.ledger) for i in range(num_workers)]
        self._closed = False

    def generate_sequences(self, batch: TensorDict) -> None:
        """Hand the prompts of a batch to the workers in equal chunks; returns once the tasks exist, not when they end.

        See AgentLoopWorkerTQ.generate_sequences for the columns. Raises AgentLoopError if the manager is closed or a
        column is wrong, and the first fatal error of an earlier batch if there was one.
        """
        if self._closed:
            raise AgentLoopError("generate_sequences was called on a closed AgentLoopManagerTQ; make a new one")
        self.ledger.raise_if_failed()
        chunks = batch.chunk(len(self.workers))  # fewer than workers for a small batch
        for worker, thread, chunk in zip(self.workers, self._threads, chunks, strict=False):
            thread.call(worker.generate_sequences(chunk))

    def take_reward_failures(self) -> dict[str, int]:
        """reward/num_timeouts and reward/num_exceptions since the last call; empty if no handle counts them."""
        total: Counter[str] = Counter()
        for handle in self.reward_loop_worker_handles:
            if handle.error_score is not None:
                total.update(handle.failures.take())
        return dict(total)

    def close(self, timeout: float = 10.0) -> None:
        """Cancel every task, wait for their ends and stop the threads. May be called twice.

        What ignores its cancellation for `timeout` seconds is named in the log and left behind.
        """
        if self._closed:
            return
        self._closed = True
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            if not thread.join(timeout):
                stuck = ", ".join(str(record) for record in self.ledger.running())
                logger.error("thread %s still runs after %.1f s, busy with %s", thread.name, timeout, stuck)

    def __enter__(self) -> AgentLoopManagerTQ:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _LoopThread:
    """An event loop on a thread of its own; at the end it cancels what the ledger has running on it."""

    def __init__(self, name: str, ledger: TaskLedger) -> None:
        self.name = name
        self.ledger = ledger
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine on the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def stop(self) -> None:
        """Tell the loop to end."""
        self.loop.call_soon_threadsafe(self.loop.stop)

    def join(self, timeout: float) -> bool:
        """Wait for the end; False if the thread still runs after `timeout` seconds."""
        self.thread.join(timeout)
        return not self.thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.ledger.cancel_all())
        finally:
            self.loop.close()
