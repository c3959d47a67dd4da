"""Who hears of generation requests: when one gets a place among the rows that are decoded, and when it leaves it.

verl 0.9.1: none; vLLM has request metrics of its own. A request that waits, because the server is paused, asleep or
full, is not decoded and has no record yet, so that the records of a server say when it worked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kitlib.rollout.protocol import StopReason, TokenOutput
from kitlib.rollout.slot_table import Request


@dataclass
class RequestRecord:
    """One request on one server. `seconds` is None while it runs; an aborted one that is resumed has several."""

    server: str
    request_id: str
    started: float  # time.time()
    num_prompt_tokens: int
    seconds: float | None = None
    num_tokens: int = 0
    stop_reason: StopReason | None = None  # None while it runs, or if nobody waited for it any more
    global_steps: int | None = None  # weight version of the last token


RequestListener = Callable[[RequestRecord], None]


class RequestLog:
    """Tells `listeners` of the begin and the end of each request, on the server's thread. Free without listeners.

    A listener that comes in the middle hears of requests that begin from then on.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        self.listeners: list[RequestListener] = []
        self._running: dict[Request, RequestRecord] = {}

    def begin(self, requests: Iterable[Request]) -> None:
        """The requests are decoded from now on."""
        if not self.listeners:
            return
        now = time.time()
        for request in requests:
            record = RequestRecord(self.server, request.request_id, now, len(request.prompt_ids))
            self._running[request] = record
            self._tell(record)

    def end(self, finished: Iterable[tuple[Request, TokenOutput | None]]) -> None:
        """The requests have left, with what they made; None for one that was cancelled."""
        if not self._running:
            return
        now = time.time()
        for request, output in finished:
            record = self._running.pop(request, None)
            if record is None:  # it never began, or began before anyone listened
                continue
            record.seconds = now - record.started
            if output is not None:
                record.num_tokens, record.stop_reason = len(output.token_ids), output.stop_reason
                record.global_steps = output.extra_fields.get("global_steps")
            self._tell(record)

    def end_all(self) -> None:
        """The server ends."""
        self.end([(request, None) for request in self._running])

    def _tell(self, record: RequestRecord) -> None:
        for listener in self.listeners:
            listener(record)
