"""The process group that FSDP2 needs, also for one process: no port, no environment variable, as often as wanted.

verl 0.9.1: utils/distributed.py, initialize_global_process_group, which reads RANK and MASTER_ADDR from the
environment.

Under torchrun (or Ray, or a test that spawns ranks) the launcher makes the default group before the engine is built,
and it is used as it is. Otherwise the first engine of this process starts a group of one over an in-memory store; the
last engine to close destroys it.
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

_lock = threading.Lock()
_num_leases = 0  # engines that use the group which this module started


class ProcessGroupLease:
    """The right to use the default process group until `close`."""

    def __init__(self, device: torch.device) -> None:
        global _num_leases
        with _lock:
            self._ours = _num_leases > 0 or not dist.is_initialized()
            if self._ours and _num_leases == 0:
                backend = "nccl" if device.type == "cuda" else "gloo"
                dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            _num_leases += self._ours

    def close(self) -> None:
        """Give the group back; the last of ours destroys it. Safe to call twice."""
        global _num_leases
        with _lock:
            if not self._ours:
                return
            self._ours = False
            _num_leases -= 1
            if _num_leases == 0:
                dist.destroy_process_group()
