"""Which server a request goes to: the one its conversation is on already, else the one with the fewest requests.

verl 0.9.1: workers/rollout/router.py, GlobalRequestLoadBalancer. Left out: being a Ray actor, routers loaded from a
YAML file, routing by content; a tie goes to the first server, not to a random one, so that a run can be repeated.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from kitlib.rollout.protocol import LLMServer, RolloutError

MAX_STICKY_REQUESTS = 10_000


class GlobalRequestLoadBalancer:
    """The registry of servers and of who is talking to which. May be shared by clients on several threads.

    `full_determinism` sends a request by the hash of its id alone, so that it meets the same server in every run.
    """

    def __init__(
        self,
        servers: Mapping[str, LLMServer],
        max_cache_size: int = MAX_STICKY_REQUESTS,
        full_determinism: bool = False,
    ) -> None:
        self._servers = dict(servers)
        self._num_inflight = dict.fromkeys(servers, 0)
        self._server_of: OrderedDict[str, str] = OrderedDict()  # request_id -> server_id, least recently used first
        self._max_cache_size = max_cache_size
        self._full_determinism = full_determinism
        self._lock = threading.Lock()

    def acquire_server(self, request_id: str) -> tuple[str, LLMServer]:
        """Server id and server for `request_id`; counts one request more there until release_server.

        RolloutError if there is no server.
        """
        with self._lock:
            if not self._servers:
                raise RolloutError(
                    f"request {request_id!r}: no server in the load balancer, add one with add_servers()"
                )
            server_id = self._server_of.get(request_id)
            if server_id not in self._servers:  # new, or its server has left
                server_id = self._choose(request_id)
            self._server_of[request_id] = server_id
            self._server_of.move_to_end(request_id)
            if len(self._server_of) > self._max_cache_size:
                self._server_of.popitem(last=False)
            self._num_inflight[server_id] += 1
            return server_id, self._servers[server_id]

    def _choose(self, request_id: str) -> str:
        if self._full_determinism:
            # not hash(): Python salts the hash of strings anew in every process
            return list(self._servers)[sum(request_id.encode()) % len(self._servers)]
        return min(self._num_inflight, key=self._num_inflight.__getitem__)

    def release_server(self, server_id: str) -> None:
        """The request is over. A server that has left the pool meanwhile is no error."""
        with self._lock:
            if server_id in self._num_inflight:
                self._num_inflight[server_id] -= 1

    def add_servers(self, servers: Mapping[str, LLMServer]) -> None:
        with self._lock:
            for server_id, server in servers.items():
                self._servers[server_id] = server
                self._num_inflight.setdefault(server_id, 0)

    def remove_servers(self, server_ids: Iterable[str]) -> None:
        """Send nothing more there. Requests in flight end as they would."""
        with self._lock:
            for server_id in server_ids:
                self._servers.pop(server_id, None)
                self._num_inflight.pop(server_id, None)

    def clear_sticky_cache(self) -> None:
        """Let every conversation choose its server anew."""
        with self._lock:
            self._server_of.clear()

    def get_status(self) -> dict[str, int]:
        """Requests in flight on each server."""
        with self._lock:
            return dict(self._num_inflight)

    def get_total_inflight(self) -> int:
        return sum(self.get_status().values())
