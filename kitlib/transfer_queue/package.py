"""The same verbs on Ray: the TransferQueue package 0.1.11, started or joined, with a snapshot through one adapter.

Nothing here replaces the package. PackageQueue hands every verb on to the module `transfer_queue` and adds what a
view needs: `snapshot`, `version` and `wait_for_change` (by polling: the package has no bell). ray and transfer_queue
are imported when a function of this file is called, never by `import kitlib`.

What can go wrong before the first verb, and is turned into a sentence here:

    too few Ray CPUs       `transfer_queue.init()` waits for ever: the controller takes a CPU, each storage unit another
    no token               a cluster started by Ray 2.60 asks for one, a process that attaches sends none by itself
    another Ray or Python  Ray refuses to talk
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from kitlib.transfer_queue.errors import QueueRuntimeError, QueueValueError
from kitlib.transfer_queue.package_snapshot import snapshot_of_controller
from kitlib.transfer_queue.protocol import Listing
from kitlib.transfer_queue.snapshot import QueueSnapshot

CONTROLLER, NAMESPACE = "TransferQueueController", "transfer_queue"
DEFAULT_STORAGE_UNITS = 2  # of the package; verl's transfer_queue.yaml says 8


class AttachedQueue:
    """Read-only: looks at the controller of a running queue and never writes, consumes or closes anything."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self._version = 0
        self._last_seen: Any = None

    def snapshot(self, partition_id: str | None = None) -> QueueSnapshot:
        """A picture of all partitions or of one, in one call a partition; reads metadata only."""
        return snapshot_of_controller(self._controller, partition_id)

    def kv_list(self, partition_id: str | None = None) -> Listing:
        """{partition_id: {key: tag}}, from a snapshot."""
        partitions = self.snapshot(partition_id).partitions
        return {name: dict(zip(part.keys, part.tags, strict=True)) for name, part in partitions.items()}

    @property
    def version(self) -> int:
        """Grows whenever a look finds something else than the look before: keys, tags, which fields are there."""
        partitions = self.snapshot().partitions
        seen = {name: (part.keys, part.tags, part.fields, part.present.tobytes()) for name, part in partitions.items()}
        if seen != self._last_seen:
            self._last_seen = seen
            self._version += 1
        return self._version

    def wait_for_change(self, since: int, timeout: float | None = None, poll_interval: float = 0.05) -> int:
        """Look every `poll_interval` seconds until `version` exceeds `since` or `timeout` seconds are over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (version := self.version) <= since and (deadline is None or time.monotonic() < deadline):
            time.sleep(poll_interval)
        return version


class PackageQueue(AttachedQueue):
    """The package as a queue of this project; every verb is the package's own.

    Verbs and async twins that are not defined here are those of the module `transfer_queue`.
    """

    def __init__(self, module: Any, controller: Any) -> None:
        super().__init__(controller)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("kv_", "async_kv_")):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._module, name)

    def kv_list(self, partition_id: str | None = None) -> Listing:
        """The package's own."""
        return self._module.kv_list(partition_id)

    def close(self) -> None:
        """Close client, controller and storage units of the whole run. Only for who started them."""
        self._module.close()


def connect(config: Mapping[str, Any] | None = None, num_cpus: int | None = None) -> PackageQueue:
    """Join the TransferQueue of the Ray cluster, or start one.

    config: what `transfer_queue.init` takes, for example {"backend": {"SimpleStorage": {"num_data_storage_units": 4}}}.
    num_cpus: logical CPUs of Ray if this call has to start Ray; by default the CPUs of the machine and what the queue
    needs on top. Raises QueueRuntimeError if a package is not installed, or if there are too few free CPUs to start the
    queue, naming the number to raise.
    """
    ray, module = _import("ray"), _import("transfer_queue")
    num_units = num_storage_units(config)
    if not ray.is_initialized():
        num_cpus = num_units + 1 + (os.cpu_count() or 1) if num_cpus is None else num_cpus
        ray.init(num_cpus=num_cpus, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    if not _controller_exists(ray):
        _check_cpus(ray, num_units)
    omegaconf = _import("omegaconf")
    module.init(None if config is None else omegaconf.OmegaConf.create(dict(config)))
    return PackageQueue(module, ray.get_actor(CONTROLLER, namespace=NAMESPACE))


def attach(address: str = "auto") -> AttachedQueue:
    """Look into the queue of a run that somebody else started, from another process or environment. Read-only.

    address: of the Ray cluster, "auto" for the one on this machine. Sends the token of ~/.ray/auth_token if Ray is not
    yet imported here (Ray reads its settings at import). Raises QueueRuntimeError that says what to do if there is no
    cluster or no queue, if the token is refused, or if Ray or Python differ.
    """
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    ray = _import("ray")
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise QueueRuntimeError(f"cannot attach to Ray at {address!r}: {_advice(str(error))} ({error})") from error
    if not _controller_exists(ray):
        raise QueueRuntimeError(
            f"the Ray cluster at {address!r} runs no TransferQueue (no actor {CONTROLLER!r} in {NAMESPACE!r}): "
            "the run has not reached transfer_queue.init(), or has ended"
        )
    return AttachedQueue(ray.get_actor(CONTROLLER, namespace=NAMESPACE))


def _advice(message: str) -> str:
    if "token" in message.lower() or "unauthenticated" in message.lower():
        return "it wants a token: set RAY_AUTH_MODE=token before Python starts, with the run's ~/.ray/auth_token"
    if "version mismatch" in message.lower():
        return (
            "Ray and Python must be those of the run; for another patch of the same Python set "
            "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor"
        )
    return "is the run alive, and is this the address it printed?"


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise QueueRuntimeError(
            f"the queue on Ray needs {name!r}, which is not installed here: pip install 'kitlib[ray]' "
            "(the in-process TransferQueue needs neither ray nor the package)"
        ) from error


def setting(config: Mapping[str, Any] | None, *names: str) -> Any:
    """A setting of the package's configuration by its path; None where it is not set."""
    found: Any = config
    for name in names:
        found = None if found is None else found.get(name)
    return found


def num_storage_units(config: Mapping[str, Any] | None) -> int:
    """backend.SimpleStorage.num_data_storage_units; QueueValueError if that is no whole number above 0."""
    num_units = setting(config, "backend", "SimpleStorage", "num_data_storage_units")
    num_units = DEFAULT_STORAGE_UNITS if num_units is None else num_units
    if not isinstance(num_units, int) or num_units < 1:
        raise QueueValueError(
            f"backend.SimpleStorage.num_data_storage_units must be a whole number >= 1: {num_units!r}"
        )
    return num_units


def _controller_exists(ray: Any) -> bool:
    try:
        ray.get_actor(CONTROLLER, namespace=NAMESPACE)
    except ValueError:
        return False
    return True


def _check_cpus(ray: Any, num_units: int) -> None:
    """Raise before `transfer_queue.init()` would wait for ever for CPUs that Ray does not have."""
    free, needed = int(ray.available_resources().get("CPU", 0)), num_units + 1
    if free < needed:
        raise QueueRuntimeError(
            f"TransferQueue would wait for ever: the controller and {num_units} storage units take {needed} Ray CPUs, "
            f"and {free} are free. Raise ray_kwargs.ray_init.num_cpus to at least {needed} (a logical number; "
            "RAY_OVERRIDE_RESOURCES='{\"CPU\": 16}' does the same from outside) or lower "
            "transfer_queue.backend.SimpleStorage.num_data_storage_units"
        )
