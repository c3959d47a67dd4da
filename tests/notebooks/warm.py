"""Kernels that start warm: forked from a process that has imported torch, transformers and ipykernel already.

Importing costs more than a small notebook, and each notebook runs several times. A warm kernel is an ordinary ipykernel
in a process of its own; only what is not ours was imported before. Nothing of kitlib is: a mutation patches a module
before anybody has taken a name out of it.

    test ── WarmKernelManager ── client (this file, one a kernel) ══ socket ══ nursery (this file, one a session)
                                                                                 └─ fork: the kernel

    python warm.py nursery SOCKET                import, listen, fork a kernel for every client
    python warm.py client SOCKET FILE            ask for a kernel with this connection file; lives as long as it does

A client that is killed takes its kernel with it.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PREPARED = [
    "torch",
    "tensordict",
    "numpy",
    "transformers",
    "transformers.models.qwen3.modeling_qwen3",
    "omegaconf",
    "rich.table",
    "safetensors.torch",
    "torchdata.stateful_dataloader",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "ipywidgets",
    "anywidget",
    "IPython",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
]
IMPORT_SECONDS = "KITLIB_IMPORT_SECONDS"  # CPU seconds that a kernel was spared, in its environment


class Nursery:
    """The process that forks kernels. `socket` is where it listens."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kitlib-")  # a short path: that of a socket may be no longer
        self.socket = Path(self._folder.name) / "nursery"
        command = [sys.executable, __file__, "nursery", str(self.socket)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # no thread may run where a fork is made
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line.strip() != "ready":
            raise RuntimeError(f"the nursery of kernels did not start: {line!r}")

    def close(self) -> None:
        """Stop it; kernels that still run end with it."""
        self.process.terminate()
        self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._folder.cleanup()


def kernel_manager_class(nursery: Nursery) -> Any:
    """A class of kernel managers for nbclient that start their kernel in this nursery."""
    from tests.kernels import LocalKernelManager

    class WarmKernelManager(LocalKernelManager):
        def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
            return [sys.executable, "-S", "-E", __file__, "client", str(nursery.socket), self.connection_file]

    return WarmKernelManager


# ------------------------------------------------------------------------------------------------------------ nursery


def serve(path: str) -> None:
    """Import, say that it is ready, and fork a kernel for each client until this process is ended."""
    for name in PREPARED:
        __import__(name)
    deadline = time.monotonic() + 60  # a thread of an import may still be on its way out
    while len(threads := _threads()) > 1:
        assert time.monotonic() < deadline, f"an import has started threads: {threads}"
        time.sleep(0.01)
    used = resource.getrusage(resource.RUSAGE_SELF)
    os.environ[IMPORT_SECONDS] = f"{used.ru_utime + used.ru_stime:.3f}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    kernels: dict[socket.socket, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        signal.signal(signal.SIGTERM, lambda *_: _end(kernels))
        while True:
            for key, _ in selector.select(timeout=0.05):
                if key.fileobj is listener:
                    client, _address = listener.accept()
                    if request := _what_it_wants(client):
                        kernels[client] = _fork(request, [client, listener, *kernels])
                        selector.register(client, selectors.EVENT_READ)
                else:  # the client is gone
                    os.kill(kernels[key.fileobj], signal.SIGKILL)  # type: ignore[index]
            for client, pid in list(kernels.items()):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    selector.unregister(client)
                    client.close()
                    del kernels[client]


def _threads() -> list[str]:
    return os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else []


def _end(kernels: dict[socket.socket, int]) -> None:
    for pid in kernels.values():
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _what_it_wants(client: socket.socket) -> dict[str, Any]:
    """The request of a client; {} if it was killed before it had said anything."""
    with client.makefile() as lines:
        line = lines.readline()
    return json.loads(line) if line.endswith("\n") else {}


def _fork(request: dict[str, Any], inherited: list[socket.socket]) -> int:
    """Fork a kernel; the child never returns. inherited: what it has no use for."""
    pid = os.fork()
    if pid:
        return pid
    for one in inherited:
        one.close()
    try:
        _become_a_kernel(**request)
    finally:
        os._exit(1)


def _become_a_kernel(connection_file: str, cwd: str, environment: dict[str, str]) -> None:
    import numpy as np
    from ipykernel.kernelapp import launch_new_instance

    spared = os.environ[IMPORT_SECONDS]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment, **{IMPORT_SECONDS: spared, "JPY_PARENT_PID": str(os.getppid())})
    sys.path[0:1] = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    np.random.seed()  # as in a process of its own; random and torch see to themselves
    launch_new_instance(argv=["-f", connection_file, "--HistoryManager.hist_file=:memory:"])
    os._exit(0)


# ------------------------------------------------------------------------------------------------------------- client


def ask(path: str, connection_file: str) -> None:
    """Ask for a kernel, and stay until the nursery says that it has ended."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    request = {"connection_file": connection_file, "cwd": os.getcwd(), "environment": dict(os.environ)}
    connection.sendall(json.dumps(request).encode() + b"\n")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while connection.recv(1):
        time.sleep(0.01)


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1] == "nursery" else ask(sys.argv[2], sys.argv[3])
