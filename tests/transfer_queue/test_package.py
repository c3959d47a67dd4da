"""The package on Ray: the checks before it starts, attaching from another process, a real verl run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.transfer_queue import Cell, QueueRuntimeError, QueueValueError, explain_get, strict_get
from kitlib.transfer_queue.package import PackageQueue, _check_cpus, attach, connect, num_storage_units
from kitlib.transfer_queue.package_snapshot import partition_of_status

ROOT = Path(__file__).parents[2]
LIVE_VERL = ROOT.parent / "shared" / "verl_live" / "live_verl.py"


class TestBeforeItStarts:
    @pytest.mark.parametrize(("free", "fits"), [(9.0, True), (8.0, False), (0.0, False)])
    def test_too_few_cpus_would_wait_for_ever(self, free: float, fits: bool) -> None:
        ray = SimpleNamespace(available_resources=lambda: {"CPU": free})
        if fits:
            _check_cpus(ray, num_units=8)
            return
        with pytest.raises(
            QueueRuntimeError, match=f"take 9 Ray CPUs, and {int(free)} are free.*num_cpus to at least 9"
        ):
            _check_cpus(ray, num_units=8)

    def test_reads_the_number_of_storage_units(self) -> None:
        assert num_storage_units(None) == 2
        assert num_storage_units({"backend": {"SimpleStorage": {"num_data_storage_units": 4}}}) == 4
        with pytest.raises(QueueValueError, match="num_data_storage_units"):
            num_storage_units({"backend": {"SimpleStorage": {"num_data_storage_units": 0}}})

    def test_says_which_package_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        for start in (connect, attach):
            with pytest.raises(QueueRuntimeError, match=r"'ray', which is not installed.*kitlib\[ray\]"):
                start()


def status(**changes: Any) -> SimpleNamespace:
    """What the controller of 0.1.11 answers: rows a (index 2) and b (index 0), fields x (ragged) and o (objects)."""
    ragged = SimpleNamespace(
        dtype=torch.int64, shape=None, is_nested=True, is_non_tensor=False, per_sample_shapes={2: [3], 0: [5]}
    )
    objects = SimpleNamespace(dtype=None, shape=None, is_nested=False, is_non_tensor=True, per_sample_shapes={})
    known = {
        "partition_id": "train",
        "keys_mapping": {"a": 2, "b": 0},
        "field_name_mapping": {"x": 0, "o": 1, "cleared": 2},
        "production_status": torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0]], dtype=torch.int8),
        "custom_meta": {2: {"t": 1}},
        "field_metadata": {"x": ragged, "o": objects},
        "consumption_status": {"task": torch.tensor([1, 0, 0])},
    }
    return SimpleNamespace(**{**known, **changes})


class TestAdapter:
    def test_translates_a_status(self) -> None:
        part = partition_of_status(status())
        assert (part.keys, part.tags, part.fields) == (("a", "b"), ({"t": 1}, {}), ("x", "o"))
        assert np.array_equal(part.present, [[True, True], [True, False]])
        assert part.cell("b", "x") == Cell("int64", (5,), "row", 40)
        assert part.consumed == {"task": frozenset({"b"})}

    def test_a_partition_without_rows(self) -> None:
        part = partition_of_status(status(keys_mapping={}))
        assert (part.keys, part.fields, part.present.shape) == ((), (), (0, 0))

    def test_names_what_another_version_lacks(self) -> None:
        other = status()
        del other.field_name_mapping, other.custom_meta
        with pytest.raises(QueueRuntimeError, match=r"no field_name_mapping, custom_meta: .* TransferQueue 0\.1\.11"):
            partition_of_status(other)


@pytest.mark.ray
class TestOnRay:
    def test_connect_joins_what_runs(self, package_queue: PackageQueue) -> None:
        package_queue.kv_put("a", "joined", tag={"t": 1})
        assert connect().kv_list("joined") == {"joined": {"a": {"t": 1}}}

    def test_explaining_and_strict_reads_work_on_the_package(self, package_queue: PackageQueue) -> None:
        package_queue.kv_put("a", "explained", {"x": torch.ones(2), "y": torch.ones(1)})
        package_queue.kv_put("b", "explained", {"x": torch.ones(3)})
        assert len(strict_get(package_queue, ["a", "b"], "x", "explained")) == 2
        assert explain_get(package_queue, ["a", "b"], ["x", "y"], "explained").dropped_fields == ["y"]

    def test_waits_for_a_change_by_looking(self, package_queue: PackageQueue) -> None:
        since = package_queue.version
        assert package_queue.wait_for_change(since, timeout=0.1) == since
        package_queue.kv_put("a", "noticed", {"x": torch.ones(1)})
        assert package_queue.wait_for_change(since, timeout=10) == since + 1

    def test_attaches_from_another_process(self, package_queue: PackageQueue) -> None:
        import ray

        package_queue.kv_put("a", "attached", {"x": torch.ones(2)}, tag={"t": 1})
        code = (
            "import sys, json; from kitlib.transfer_queue.package import attach; q = attach(sys.argv[1]);"
            "p = q.snapshot('attached').partitions['attached']; print(json.dumps([p.keys, p.tags, p.fields]))"
        )
        address = ray.get_runtime_context().gcs_address
        done = subprocess.run(
            [sys.executable, "-c", code, address], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == [["a"], [{"t": 1}], ["x"]]


@pytest.fixture(params=["sync", "colocate_async"])
def live_run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen]]:
    """A verl V1 run in a process of its own; yields the folder in which it says where it stands."""
    if not LIVE_VERL.exists():
        pytest.skip("no script here that starts a verl run without a GPU")
    pytest.importorskip("verl", reason="verl is not installed")
    pytest.importorskip("ray", reason="ray is not installed")
    command = [sys.executable, str(LIVE_VERL), "--mode", request.param, "--steps", "3", "--delay", "1"]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen([*command, "--workdir", str(tmp_path)], stdout=log, stderr=log, cwd=tmp_path)
        yield tmp_path, process
        process.terminate()
        process.wait(timeout=60)


WATCH = """
import json, sys, time
from kitlib.transfer_queue import QueueRuntimeError
from kitlib.transfer_queue.package import attach
queue, rows, markers, fields, looks = attach(sys.argv[1]), 0, set(), 0, 0
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    try:
        parts = queue.snapshot().partitions
    except QueueRuntimeError:
        break
    looks += 1
    if "train" in parts:
        train = parts["train"]
        rows = max(rows, sum("_" in key for key in train.keys))
        markers |= {tag["status"] for key, tag in zip(train.keys, train.tags) if tag.get("is_prompt")}
        fields = max(fields, len(train.fields))
    time.sleep(0.05)
print(json.dumps({"rows": rows, "markers": sorted(markers), "fields": fields, "looks": looks}))
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_attaches_to_a_real_verl_run(live_run: tuple[Path, subprocess.Popen]) -> None:
    folder, process = live_run
    deadline = time.monotonic() + 150
    while not (folder / "stage.json").exists() and time.monotonic() < deadline:
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        time.sleep(0.5)
    address = (folder / "address").read_text().strip()
    environment = {**os.environ, "RAY_AUTH_MODE": "token"}
    watcher = subprocess.run(
        [sys.executable, "-c", WATCH, address], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert watcher.returncode == 0, watcher.stderr[-3000:]
    seen = json.loads(watcher.stdout.splitlines()[-1])
    assert seen["rows"] >= 12
    assert "running" in seen["markers"]
    assert seen["fields"] >= 32
