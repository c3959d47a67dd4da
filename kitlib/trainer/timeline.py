"""Records the time line of a run: an observer of the stages that also listens to the servers.

verl 0.9.1: none. Works for every mode and for V0:

    recorder = TimelineRecorder()
    TaskRunner().run(config, observers=[recorder])
    time_line(recorder.timeline())                       # the picture
    save_chrome_trace(recorder.timeline(), "trace.json") # for ui.perfetto.dev

A server that keeps no request log (`server.request_log`) has no lane. The lane of a rank is that of the stages that
run on it: in one process they are calls of the driver.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kitlib.contract import StageRecord
from kitlib.inspector.timeline import DRIVER, RANK, Span, Timeline, stage_span
from kitlib.rollout.request_log import RequestLog, RequestRecord
from kitlib.trainer.observers import Observer

if TYPE_CHECKING:
    from kitlib.trainer.base import PPOTrainer

NUM_SPANS_KEPT = 200_000  # a step of 128 sessions makes some 300
ON_RANKS = {
    "compute_old_log_prob",
    "compute_log_prob",
    "compute_ref_log_prob",
    "compute_values",
    "update_critic",
    "update_actor",
}


class TimelineRecorder(Observer):
    """Keeps a span of each stage and of each request, the last 200,000 of them. One run a recorder."""

    def __init__(self) -> None:
        self.title = "run"
        self._spans: deque[Span] = deque(maxlen=NUM_SPANS_KEPT)  # filled by the driver and by the servers' threads
        self._running: dict[int, RequestRecord] = {}  # requests that have no end yet
        self._num_ranks = 1
        self._logs: list[RequestLog] = []
        self._ended: float | None = None  # of the run
        self.listeners: list[Callable[[Span], None]] = []
        """Called with every span, on the thread that saw it."""

    @property
    def has_spans(self) -> bool:
        """False before the first stage has ended."""
        return bool(self._spans or self._running)

    def timeline(self) -> Timeline:
        """What was seen so far; requests that still run end now, or with the run.

        Raises EmptyTimelineError before the first stage.
        """
        now = self._ended or time.time()
        open_spans = [_request_span(record, now) for record in list(self._running.values())]
        return Timeline(self.title, (*list(self._spans), *open_spans))

    def watch(self, trainer: PPOTrainer) -> None:
        """Listen to the servers of a trainer from now on; `fit` does it, call it when you run the stages yourself."""
        assert trainer.parts is not None, "call trainer.init() first"
        self.title = trainer.trainer_mode
        self._num_ranks = trainer.actor_rollout_wg.dp_size
        self._logs = _request_logs(trainer)
        for log in self._logs:
            log.listeners.append(self.on_request)

    def on_fit_begin(self, trainer: PPOTrainer) -> None:
        self.watch(trainer)

    def on_fit_end(self, trainer: PPOTrainer) -> None:
        self._ended = time.time()
        for log in self._logs:
            log.listeners.remove(self.on_request)

    def on_stage(self, trainer: PPOTrainer, record: StageRecord) -> None:
        if record.seconds is None:
            return
        self._keep(stage_span(record, DRIVER))
        if record.stage in ON_RANKS:
            for rank in range(self._num_ranks):
                self._keep(stage_span(record, f"{RANK}-{rank}"))

    def on_request(self, record: RequestRecord) -> None:
        """Begin or end of a request, on the server's thread."""
        if record.seconds is None:
            self._running[id(record)] = record
        elif self._running.pop(id(record), None) is not None:
            self._keep(_request_span(record, record.started + record.seconds))

    def _keep(self, span: Span) -> None:
        self._spans.append(span)
        for listener in self.listeners:
            listener(span)


def _request_logs(trainer: PPOTrainer) -> list[RequestLog]:
    """Those of the servers, and of the servers that separate_async lends out; each named after its lane."""
    assert trainer.parts is not None
    pools = {"server": trainer.parts.llm_server_manager}
    hybrid = getattr(trainer, "hybrid", None)
    if hybrid is not None:
        pools["hybrid"] = hybrid.servers
    logs = []
    for name, pool in pools.items():
        for rank, replica in enumerate(pool.get_replicas()):
            if hasattr(replica, "request_log"):
                replica.request_log.server = f"{name}-{rank}"
                logs.append(replica.request_log)
    return logs


def _request_span(record: RequestRecord, ended: float) -> Span:
    details = {"prompt tokens": record.num_prompt_tokens, "tokens": record.num_tokens, "stop": record.stop_reason}
    return Span(record.server, "request", record.request_id, record.started, ended, record.global_steps, details)
