"""A scoring server on this machine, for rewards over HTTP, with the troubles that a real one has.

server = ScoringServer(["down", "slow"])     the first request gets status 503, the second one no answer in time
server.url                                   for reward.custom_reward_function.reward_kwargs.url
server.requests                              what it was asked, and what it answered
server.close()
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from kitlib.reward import compute_score
from kitlib.reward.remote import RemoteRewardError, remote_score

Trouble = Literal["down", "slow", "refuses", "no json"]
STATUS = {"down": 503, "refuses": 400}


class ScoringServer:
    """Answers with the score of the rules of kitlib, unless a trouble is due: one a request, in their order.

    always: the trouble of every request after these; None: none.
    """

    def __init__(self, troubles: Sequence[Trouble] = (), always: Trouble | None = None, seconds: float = 60.0) -> None:
        self.troubles = list(troubles)
        self.always = always
        self.seconds = seconds  # that a slow answer takes, unless its client hangs up before
        self.requests: list[tuple[dict[str, Any], str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._answer))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/score"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="kitlib-scoring-server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the server and its thread. May be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, asked: dict[str, Any], connection: socket.socket) -> tuple[int, bytes]:
        """Status and body for one request."""
        trouble = self.troubles.pop(0) if self.troubles else self.always
        self.requests.append((asked, trouble or "answered"))
        if trouble == "slow":
            connection.settimeout(self.seconds)
            with suppress(OSError):
                connection.recv(1)  # nothing comes, until the client has lost its patience
        if trouble == "no json":
            return 200, b"<html>welcome</html>"
        score = compute_score(asked["data_source"], asked["solution_str"], asked["ground_truth"], asked["extra_info"])
        return STATUS.get(trouble or "", 200), json.dumps({"score": score, "judge": "scoring server"}).encode()


def count_requests(always: Trouble, num_retries: int) -> int:
    """How many requests a server with this trouble gets before `remote_score` gives up."""
    server = ScoringServer(always=always)
    with suppress(RemoteRewardError):
        remote_score("kitlib/sum_tool", "####71", "71", url=server.url, num_retries=num_retries, first_wait=0.02)
    server.close()
    return len(server.requests)


def _handler(answer: Callable[[dict[str, Any], socket.socket], tuple[int, bytes]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, body = answer(asked, self.connection)
            with suppress(OSError):  # the client did not wait so long
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...  # the notebook shows `requests` instead

    return Handler
