"""The store against the TransferQueue package and against a bare copy of the same bytes, in one run on one machine.

    python bench/store.py [--big]          --big adds 1 GB values and 1,000,000 keys (about 6 GB of memory)

The package is measured if ray and transfer_queue are installed. Of several runs the quickest counts: it is the one that
nothing else on the machine has disturbed.

The limit of a large put or get is one copy of the same bytes into fresh memory, since a value in the store belongs to
nobody else. A copy into memory that is at hand is quicker by what the kernel takes to hand out zeroed pages.
"""

from __future__ import annotations

import argparse
import importlib.util
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tensordict import NonTensorStack, TensorDict

from kitlib.replay_buffer import ReplayBuffer
from kitlib.transfer_queue import TransferQueue, jagged, take_snapshot, watch

TAG = {"status": "success", "prompt_len": 20, "response_len": 30, "seq_len": 50, "global_steps": 1}


def seconds(call: Callable[[], Any], repeats: int = 7) -> float:
    """Shortest duration of a call, after one that does not count."""
    call()
    return min(duration(call) for _ in range(repeats))


def duration(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def keys_of(num_keys: int) -> list[str]:
    return [f"u{number // 8}_{number % 8}_0" for number in range(num_keys)]


def batch_of(num_keys: int, num_fields: int = 1) -> TensorDict:
    rows = jagged([torch.arange(30 + number % 9) for number in range(num_keys)])
    return TensorDict({f"x{field}": rows for field in range(num_fields)}, batch_size=num_keys)


def small_operations(tq: Any) -> dict[str, float]:
    """Seconds of calls that move little data."""
    keys, one, many = keys_of(256), keys_of(1), keys_of(10_000)
    batch, row, tags = batch_of(256), batch_of(1), [TAG] * 10_000
    times = {
        "put 256 keys, one jagged field": seconds(lambda: tq.kv_batch_put(keys, "small", batch)),
        "get 256 keys, one jagged field": seconds(lambda: tq.kv_batch_get(keys, "small")),
        "put 1 key": seconds(lambda: tq.kv_batch_put(one, "single", row)),
        "get 1 key": seconds(lambda: tq.kv_batch_get(one, "single")),
        "put 10,000 tags": seconds(lambda: tq.kv_batch_put(many, "tags", tags=tags), 3),
        "list 10,000 keys": seconds(lambda: tq.kv_list("tags"), 3),
    }
    for partition, names in (("small", keys), ("single", one), ("tags", many)):
        tq.kv_clear(names, partition)
    return times


def bandwidth(tq: Any, num_bytes: int, repeats: int = 5) -> dict[str, float]:
    """GB/s of a put and of a get of 16 rows, and of bare copies, in turns."""
    keys, values = keys_of(16), torch.ones(16, num_bytes // 64)
    batch, target = TensorDict({"x": values}, batch_size=16), torch.ones_like(values)
    calls: dict[str, Callable[[], Any]] = {
        "memcpy": lambda: target.copy_(values),
        "memcpy to fresh memory": values.clone,
        "put": lambda: tq.kv_batch_put(keys, "large", batch),
        "get": lambda: tq.kv_batch_get(keys, "large"),
    }
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            best[name] = min(best[name], duration(call))
    tq.kv_clear(keys, "large")
    return {name: num_bytes / taken / 1e9 for name, taken in best.items()}


def training_batch() -> dict[str, float]:
    """Seconds of what a training step does, and of the same with the event log around the store."""
    keys, tags = keys_of(128), [TAG] * 128
    columns = dict(batch_of(128, 15).items())
    columns |= {f"o{n}": NonTensorStack(*[{"role": "user", "content": "x" * n} for _ in keys]) for n in range(4)}
    columns |= {f"s{n}": NonTensorStack(*[f"a{number}" for number in range(128)]) for n in range(6)}
    batch = TensorDict(columns, batch_size=128)
    row = {name: column[0] if isinstance(column, torch.Tensor) else column[0].data for name, column in batch.items()}
    tq = TransferQueue()
    times = {
        "put 1 row x 25 fields, as a dict": seconds(lambda: tq.kv_put(keys[0], "train", row, TAG), 201),
        "put 128 rows x 25 fields": seconds(lambda: tq.kv_batch_put(keys, "train", batch, tags), 21),
        "put 128 tags": seconds(lambda: tq.kv_batch_put(keys, "train", tags=tags), 21),
        "get 6 of 25 fields": seconds(lambda: tq.kv_batch_get(keys, "train", [f"x{n}" for n in range(6)]), 21),
        "get all 25 fields": seconds(lambda: tq.kv_batch_get(keys, "train"), 21),
        "list 128 keys": seconds(lambda: tq.kv_list("train"), 21),
    }
    watched = watch(TransferQueue())
    logged = seconds(lambda: watched.kv_batch_put(keys, "train", batch, tags), 21)
    times["event log, per key of that put"] = max(0.0, logged - times["put 128 rows x 25 fields"]) / 128
    return times


def growth(sizes: list[int]) -> list[tuple[int, float, float]]:
    """(keys in the queue, microseconds a key of a put, of a get), with one jagged field, 1,000 keys a call."""
    tq, rows, done = TransferQueue(total_storage_size=None), [], 0
    batch = batch_of(1000)
    for size in sizes:
        for start in range(done, size, 1000):
            part = [f"k{number}" for number in range(start, start + 1000)]
            tq.kv_batch_put(part, "p", batch)
        done = size
        put, get = seconds(lambda: tq.kv_batch_put(part, "p", batch)), seconds(lambda: tq.kv_batch_get(part, "p"))  # noqa: B023
        rows.append((size, put * 1e3, get * 1e3))
    return rows


def snapshot_cost(num_keys: int = 100_000, num_fields: int = 30) -> tuple[float, float]:
    """(seconds, MB) of a snapshot."""
    tq = TransferQueue(total_storage_size=None)
    batch = TensorDict({f"x{n}": torch.zeros(num_keys, 4) for n in range(num_fields)}, batch_size=num_keys)
    tq.kv_batch_put(keys_of(num_keys), "p", batch, [TAG] * num_keys)
    duration = seconds(lambda: take_snapshot(tq), 5)
    tracemalloc.start()
    kept = take_snapshot(tq)
    size = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    assert kept.partitions["p"].present.all()
    return duration, size


def wake_up(num_rows: int = 10_000, repeats: int = 21) -> float:
    """Shortest time from the last status update of a prompt to the return of `sample`, with other rows in the queue."""
    tq, delays = TransferQueue(), []
    tq.kv_batch_put(keys_of(num_rows), "train", tags=[TAG] * num_rows)
    for number in range(num_rows // 8):
        tq.kv_put(f"u{number}", "train", tag={"is_prompt": True, "status": "running", "global_steps": 1})
    buffer = ReplayBuffer(tq)
    for number in range(repeats):
        returned: list[float] = []
        sample = lambda: (buffer.sample(1, "train", 1), returned.append(time.perf_counter()))  # noqa: B023, E731
        waiter = threading.Thread(target=sample)
        waiter.start()
        while buffer.why_waiting() is None:
            time.sleep(0.001)
        time.sleep(0.02)  # it has looked and sleeps
        began = time.perf_counter()
        tq.kv_put(f"u{number}", "train", tag={"status": "finished"})
        waiter.join()
        delays.append(returned[0] - began)
    return min(delays)


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big", action="store_true")
    big = parser.parse_args().big
    sizes = [64 << 20, 1 << 30] if big else [64 << 20]

    package = None
    if all(importlib.util.find_spec(name) for name in ("ray", "transfer_queue")):
        from kitlib.transfer_queue.package import connect

        package = connect()

    show("A training step's calls", ["", "ms"], [[k, f"{v * 1e3:.3f}"] for k, v in training_batch().items()])
    ours = small_operations(TransferQueue())
    theirs = small_operations(package) if package else {}
    rows = [[k, f"{v * 1e3:.3f}", *_against(v, theirs.get(k))] for k, v in ours.items()]
    show("Small operations, ms", ["", "in process", "package on Ray", "factor"], rows)

    rows, names = [], []
    for size in sizes:
        rates = bandwidth(TransferQueue(), size)
        limit = rates["memcpy to fresh memory"]
        far = bandwidth(package, size) if package else {}
        named = rates | {"put / limit": rates["put"] / limit, "get / limit": rates["get"] / limit}
        named |= {f"package {verb}": far[verb] for verb in ("put", "get") if far}
        names = list(named)
        rows.append([f"{size >> 20} MB", *(f"{value:.2f}" for value in named.values())])
    show("Large values, GB/s", ["", *names], rows)

    counts = [1_000, 10_000, 100_000, *([1_000_000] if big else [])]
    grown = [[f"{n:,}", f"{put:.2f}", f"{get:.2f}"] for n, put, get in growth(counts)]
    show("Cost a key as the queue grows, microseconds", ["keys in the queue", "put", "get"], grown)
    duration, size_mb = snapshot_cost()
    print(f"snapshot of 100,000 keys x 30 fields: {duration * 1e3:.0f} ms, {size_mb:.0f} MB")
    print(f"last session of a prompt done -> sample returns, 10,000 rows in the queue: {wake_up() * 1e3:.2f} ms")
    if package:
        package.close()


def _against(ours: float, theirs: float | None) -> tuple[str, str]:
    return ("-", "-") if theirs is None else (f"{theirs * 1e3:.3f}", f"{theirs / ours:.0f}x")


if __name__ == "__main__":
    main()
