"""A reward over HTTP: what is sent, what is tried again, what is given up."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kitlib.config import load_config
from kitlib.reward import load_reward_fn
from kitlib.reward.remote import RemoteRewardError, remote_score

Answer = tuple[int, Any]  # status, body (None: no answer at all)


class Server(ThreadingHTTPServer):
    """Gives its answers one by one, and keeps the requests."""

    daemon_threads = True

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.requests = answers, []
        self.closing = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/score"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, body = self.server.answers.pop(0)
        self.server.requests.append(request)
        if body is None:
            self.server.closing.wait(100)
            return
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers = []

    def start(*answers: Answer) -> Server:
        servers.append(Server(list(answers)))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.closing.set()
        server.shutdown()
        server.server_close()


def ask(server: Server, **settings: Any) -> Any:
    return remote_score(
        "add", "####3", "3", {"turns": 2}, url=server.url, **{"first_wait": 0.01, "timeout": 100.0, **settings}
    )


def test_the_server_gets_the_whole_story(serve: Callable[..., Server]) -> None:
    server = serve((200, 0.5), (200, {"score": 1, "why": "right"}))
    assert ask(server) == 0.5
    assert ask(server) == {"score": 1, "why": "right"}
    content = {"data_source": "add", "solution_str": "####3", "ground_truth": "3", "extra_info": {"turns": 2}}
    assert server.requests == [content, content]


@pytest.mark.parametrize("first", [(500, "down"), (429, "later"), (200, b"no json")])
def test_what_may_pass_is_tried_again(serve: Callable[..., Server], first: Answer) -> None:
    server = serve(first, (200, 1.0))
    assert ask(server) == 1.0
    assert len(server.requests) == 2


def test_no_answer_in_time_is_tried_again(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try has a moment, and ends when its request has arrived; the second has all the time it needs."""
    server, urlopen, seconds = serve((200, None), (200, 1.0)), urllib.request.urlopen, []

    def open_and_note(request: Any, timeout: float) -> Any:
        seconds.append(timeout)
        try:
            return urlopen(request, timeout=timeout if len(seconds) == 1 else 100.0)
        finally:
            while not server.requests:
                time.sleep(0.001)

    monkeypatch.setattr(urllib.request, "urlopen", open_and_note)
    assert ask(server, timeout=0.2) == 1.0
    assert seconds == [0.2, 0.2]
    assert len(server.requests) == 2


def test_a_refusal_is_not_tried_again(serve: Callable[..., Server]) -> None:
    server = serve((404, "no"))
    with pytest.raises(RemoteRewardError, match="refused the request with status 404"):
        ask(server)


def test_giving_up_names_url_tries_and_the_last_answer(serve: Callable[..., Server]) -> None:
    server = serve(*[(503, "down")] * 3)
    with pytest.raises(RemoteRewardError, match=rf"{server.url} gave no score in 3 tries; the last one: status 503"):
        ask(server, num_retries=2)
    with socket.socket() as nobody, pytest.raises(RemoteRewardError, match="URLError.*refused"):
        nobody.bind(("127.0.0.1", 0))  # a port of one's own, on which nobody listens
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/score"
        remote_score("add", "", "", url=url, num_retries=0, timeout=100.0)


def test_an_answer_without_a_score_is_shown(serve: Callable[..., Server]) -> None:
    with pytest.raises(RemoteRewardError, match=r"answered \{'acc': 1\}: expected a number or an object with 'score'"):
        ask(serve((200, {"acc": 1})))


def test_the_settings_name_it(serve: Callable[..., Server]) -> None:
    key = "reward.custom_reward_function"
    server = serve((200, 0.25))
    settings = [f"{key}.path=pkg://kitlib.reward.remote", f"{key}.name=remote_score"]
    function = load_reward_fn(load_config([*settings, f"{key}.reward_kwargs.url={server.url}"]))
    assert function("add", "3", "3", extra_info=None) == 0.25
