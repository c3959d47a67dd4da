"""Stop a server in the middle of its answers, at a step of its decoder instead of at a moment of the clock.

In a run `CheckpointEngineManager.abort_replicas` does this, whenever the trainer has enough groups. Here it happens
after a number of tokens, so that a lesson repeats itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kitlib.lessons.expect import LessonError
from kitlib.rollout.engine import Finished
from kitlib.rollout.transformers_server import TransformersServer
from kitlib.transfer_queue import QueueProtocol


@dataclass(frozen=True)
class Half:
    """What a request had when it was aborted."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    global_steps: int  # weights that made the last token

    def begins(self, token_ids: Sequence[int], log_probs: Sequence[float]) -> bool:
        """Do these tokens and log-probs begin with the half, unchanged?"""
        length = len(self.token_ids)
        same_tokens = tuple(token_ids[:length]) == self.token_ids
        return same_tokens and tuple(log_probs[:length]) == self.log_probs


class Interruption:
    """Aborts all requests of a server once one of them has `num_tokens` tokens; the server is paused then."""

    def __init__(self, server: TransformersServer, num_tokens: int) -> None:
        self.halves: list[Half] = []
        self._server, self._num_tokens = server, num_tokens
        self._paused = threading.Event()
        self._step = server._engine.step
        server._engine.step = self._count  # type: ignore[method-assign]

    def _count(self) -> list[Finished]:
        """One step of the decoder, on the server's thread."""
        finished = self._step()
        if self._longest() >= self._num_tokens:
            del self._server._engine.step  # the method of the class again
            self._server._answer(finished)
            finished = self._abort()
        return finished

    def _longest(self) -> int:
        """Tokens of the request in flight that has most."""
        engine = self._server._engine
        table, active = engine._table, slice(engine.num_active)
        return int((table.length[active] - table.prompt_length[active]).max(initial=0))

    def _abort(self) -> list[Finished]:
        self._server._set_state(paused=True, rejecting=False)
        aborted = self._server._engine.abort_all()
        self.halves = [_half(output) for _, output in aborted if output.token_ids]
        self._paused.set()
        return aborted

    def wait(self, timeout: float = 120.0) -> list[Half]:
        """Wait until the server has been stopped; returns the halves."""
        if not self._paused.wait(timeout):
            raise LessonError(f"the server was not asked for enough tokens within {timeout:g} s")
        return self.halves

    def num_kept(self, tq: QueueProtocol, key: str, partition_id: str = "train") -> int:
        """With how many tokens of a half, log-probs included, does this row begin? 0: it was never interrupted."""
        row = tq.kv_batch_get([key], partition_id, ["responses", "rollout_log_probs"])
        token_ids, log_probs = row["responses"].unbind()[0].tolist(), row["rollout_log_probs"].unbind()[0].tolist()
        return max((len(half.token_ids) for half in self.halves if half.begins(token_ids, log_probs)), default=0)

    def kept(self, tq: QueueProtocol, keys: Iterable[str]) -> dict[str, int]:
        """Row -> tokens of a half that it begins with, for the rows that were interrupted, the longest response
        first."""
        kept = {key: number for key in keys if (number := self.num_kept(tq, key))}
        lengths = {key: len(tq.kv_batch_get([key], "train", ["responses"])["responses"].unbind()[0]) for key in kept}
        return {key: kept[key] for key in sorted(kept, key=lambda key: (-kept[key], -lengths[key]))}


def _half(output: Any) -> Half:
    return Half(tuple(output.token_ids), tuple(output.log_probs or ()), output.extra_fields["global_steps"])


def interrupt_after(server: TransformersServer, num_tokens: int) -> Interruption:
    """Stop this server once it has made `num_tokens` tokens for a request; those that start together have as many."""
    return Interruption(server, num_tokens)
