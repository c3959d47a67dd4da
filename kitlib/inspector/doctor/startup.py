"""Start-up: what keeps a queue from coming up at all, from facts of the context.

TransferQueue 0.1.11: with fewer Ray CPUs than storage units plus one, `init` waits for ever without a message; the
controller's picture is internal and belongs to one version of the package.
"""

from __future__ import annotations

from collections.abc import Iterator

from kitlib.inspector.doctor.finding import Finding, some
from kitlib.inspector.doctor.situation import Situation

OLDEST = (0, 1, 9)  # TransferQueue: the first with a readiness map a partition and the clear in three steps


def too_few_cpus(s: Situation) -> Iterator[Finding]:
    """too_few_cpus: Ray has fewer CPUs than controller and storage units take."""
    cpus, units = s.fact("ray_cpus"), s.fact("num_storage_units")
    if cpus is None or units is None or cpus >= units + 1:
        return
    yield Finding(
        "too_few_cpus",
        "error",
        f"The controller and {some(units, 'storage unit')} take {units + 1} Ray CPUs, and Ray has {cpus}: "
        "transfer_queue.init() waits for ever, without a message.",
        f"Raise ray_kwargs.ray_init.num_cpus to at least {units + 1} (a logical number), or lower "
        "transfer_queue.backend.SimpleStorage.num_data_storage_units.",
        numbers={"ray_cpus": cpus, "num_storage_units": units, "needed": units + 1},
    )


def old_package(s: Situation) -> Iterator[Finding]:
    """old_package: a TransferQueue with known faults that later versions do not have."""
    version = s.fact("transfer_queue_version")
    parts = tuple(int(part) for part in str(version).split(".")[:3] if part.isdigit()) if version else ()
    if not parts or parts >= OLDEST:
        return
    yield Finding(
        "old_package",
        "warning",
        f"TransferQueue {version} shares readiness between partitions and can lose a value in a late clear.",
        f"Install TransferQueue {'.'.join(map(str, OLDEST))} or later on every node.",
        numbers={"version": str(version)},
    )
