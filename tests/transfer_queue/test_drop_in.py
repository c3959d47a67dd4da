"""The verbs as functions of a module, as code for the package calls them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kitlib.transfer_queue import NoQueueError, QueueFullError, QueueValueError, drop_in


@pytest.fixture
def tq() -> Iterator[object]:
    yield drop_in
    drop_in.close()


def test_verbs_work_between_init_and_close(tq) -> None:
    config = {"backend": {"SimpleStorage": {"num_data_storage_units": 3, "total_storage_size": 1}}}
    assert tq.init(config) is config
    assert len(tq.queue()._storage.units) == 3
    meta = tq.kv_put("a", "p", {"x": torch.ones(2)}, {"t": 1})
    assert asyncio.run(tq.async_kv_batch_get_by_meta(meta))["x"].values().tolist() == [1, 1]
    with pytest.raises(QueueFullError):
        tq.kv_put("b", "p", {"x": torch.ones(2)})
    assert tq.get_client().is_produced(["x"], "p") is False  # b is registered and has no field
    tq.close()
    tq.close()
    for use in (tq.kv_list, tq.queue, tq.get_client, lambda: tq.save_checkpoint("nowhere")):
        with pytest.raises(NoQueueError, match="init"):
            use()


def test_a_second_init_changes_nothing_and_a_wrong_one_opens_nothing(tq) -> None:
    with pytest.raises(QueueValueError, match="num_data_storage_units"):
        tq.init({"backend": {"SimpleStorage": {"num_data_storage_units": 0}}})
    tq.init()
    tq.kv_put("a", "p", tag={})
    tq.init({"backend": {"SimpleStorage": {"num_data_storage_units": 0}}})
    assert tq.kv_list("p") == {"p": {"a": {}}}


def test_checkpoints_as_the_package_takes_them(tq, tmp_path: Path) -> None:
    tq.init()
    tq.kv_put("a", "p", tag={"t": 1})
    tq.save_checkpoint(tmp_path, include_storage=False, metadata={"global_steps": 3})
    tq.kv_clear("a", "p")
    assert tq.load_checkpoint(tmp_path) is None
    assert tq.kv_list() == {"p": {"a": {"t": 1}}}


def test_code_that_imports_the_package_runs_on_it() -> None:
    code = (
        "import sys, kitlib.transfer_queue.drop_in as d; sys.modules['transfer_queue'] = d\n"
        "import transfer_queue as tq\n"
        "from transfer_queue import KVBatchMeta, kv_list\n"
    )
    code += "tq.init(); tq.kv_put(key='k', partition_id='p', tag={}); print(kv_list()); tq.close()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'p': {'k': {}}}"
