"""The process group that FSDP2 needs, also for one process: no port, no environment variable, as often as wanted.

verl 0.9.1: utils/distributed.py, initialize_global_process_group, which reads RANK and MASTER_ADDR from the
environment.

Under torchrun (or Ray, or a test that spawns ranks) the launcher makes the default group before the engine is built,
and it is used as it is. Otherwise the first engine of this process starts a group of one over an in-memory store; the
last engine to close destroys it.
"""

from __future__ import annotations

import threading
from typing import ClassVar

import torch
import torch.distributed as dist


class ProcessGroupLease:
    """The right to use the default process group until `close`."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _num_open: ClassVar[int] = 0
    """Leases on the group that this module started."""

    def __init__(self, device: torch.device) -> None:
        with self._lock:
            self._ours = self._num_open > 0 or not dist.is_initialized()
            if self._ours and self._num_open == 0:
                backend = "nccl" if device.type == "cuda" else "gloo"
                dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            ProcessGroupLease._num_open += self._ours

    def close(self) -> None:
        """Give the group back; the last of ours destroys it. Safe to call twice."""
        with self._lock:
            if not self._ours:
                return
            self._ours = False
            ProcessGroupLease._num_open -= 1
            if self._num_open == 0:
                dist.destroy_process_group()
