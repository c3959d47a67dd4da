"""Small things to sample from: groups put by hand, a source of fresh prompts, and a `sample` on a thread of its own."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from kitlib.lessons.expect import LessonError
from kitlib.replay_buffer import ReplayBuffer, WaitReport
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, list_of_dict_to_tensordict

POLL_SECONDS = 0.01


def put_group(
    tq: QueueProtocol,
    uid: str,
    scores: Sequence[float],
    status: str = "finished",
    step: int = 1,
    num_sessions: int = 2,
    partition_id: str = "train",
) -> None:
    """One row a score, then the marker: the order in which the agent loop writes.

    num_sessions: how many rows the marker promises. Rows have two response tokens, the score is on the last.
    """
    keys = [f"{uid}_{session_id}_0" for session_id in range(len(scores))]
    if keys:
        rows = [{"responses": torch.tensor([7, 2]), "rm_scores": torch.tensor([0.0, score])} for score in scores]
        tags = [{"status": "success", "seq_len": 4, "global_steps": step} for _ in keys]
        tq.kv_batch_put(keys=keys, partition_id=partition_id, fields=list_of_dict_to_tensordict(rows), tags=tags)
    marker = {"is_prompt": True, "status": status, "global_steps": step, "num_sessions": num_sessions}
    tq.kv_put(key=uid, partition_id=partition_id, tag=marker)


class ToyRefill:
    """A `refill_fn` whose prompts are finished at once: r1, r2, ... with the next of `groups` as their scores.

    `calls` says how many prompts each call asked for.
    """

    def __init__(self, tq: QueueProtocol, groups: Iterable[Sequence[float]], step: int = 1) -> None:
        self.tq = tq
        self.step = step
        self.calls: list[int] = []
        self._groups = iter(groups)

    def __call__(self, num_prompts: int) -> None:
        for number in range(sum(self.calls) + 1, sum(self.calls) + num_prompts + 1):
            scores = next(self._groups, None)
            if scores is None:
                raise LessonError(f"the sampler asks for a prompt r{number}, and this toy has no more")
            put_group(self.tq, f"r{number}", scores, step=self.step)
        self.calls.append(num_prompts)


class SampleAside:
    """One `sample` call beside the notebook, so that a cell can ask meanwhile what it waits for.

    It does not give up before it was asked for a report or for its result, however slow the machine is.
    """

    def __init__(self, buffer: ReplayBuffer, global_steps: int, batch_size: int, partition_id: str = "train") -> None:
        self.buffer = buffer
        self._give_up_after, buffer.give_up_after = buffer.give_up_after, math.inf
        self._future: Future[tuple[KVBatchMeta, dict[str, Any]]] = Future()
        self._request = (global_steps, partition_id, batch_size)
        threading.Thread(target=self._run, name="kitlib-lesson-sample", daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self.buffer.sample(*self._request))
        except BaseException as error:  # noqa: BLE001 - it belongs to the cell that asks for the result
            self._future.set_exception(error)

    @property
    def done(self) -> bool:
        """Has `sample` ended, with a batch or with an error?"""
        return self._future.done()

    def report(self, timeout: float = 60.0) -> WaitReport:
        """What it waits for. Raises LessonError if it does not wait, and what `sample` raised if it has raised."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not self.done:
            report = self.buffer.why_waiting()
            if report is not None:
                self.buffer.give_up_after = self._give_up_after
                return report
            time.sleep(POLL_SECONDS)
        if self.done:
            self._future.result()
        raise LessonError("this sample does not wait" + (": it has its batch" if self.done else ""))

    def result(self, timeout: float = 120.0) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The batch and the metrics, or the error, once it has ended. Raises TimeoutError after `timeout` seconds."""
        self.buffer.give_up_after = self._give_up_after
        return self._future.result(timeout)
