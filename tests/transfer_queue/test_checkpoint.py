"""Save and load: what comes back, and what a crash, a truncation or a foreign file does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from kitlib.transfer_queue import QueueFileError, QueueTypeError, TransferQueue, diff, jagged


@pytest.fixture
def tq() -> TransferQueue:
    queue = TransferQueue()
    columns = {
        "jagged": jagged([torch.arange(2), torch.arange(3)]),
        "dense": torch.ones(2, 3, dtype=torch.bfloat16),
        "scalar": torch.tensor([1.0, 2.0]),
        "object": NonTensorStack({"a": [1, None, b"x"]}, "text"),
        "array": NonTensorStack(np.arange(3), np.float32(1.5)),
    }
    queue.kv_batch_put(["a", "b"], "p", TensorDict(columns, batch_size=2), [{"t": 1}, {"deep": [1]}])
    queue.kv_put("b", "p", {"only_b": torch.ones(2, 2)})
    queue.kv_put("marker", "p", tag={"status": "running"})
    queue.kv_put("gone", "empty", tag={})
    queue.kv_clear("gone", "empty")
    return queue


def test_everything_comes_back(tq: TransferQueue, tmp_path: Path) -> None:
    tq.save_checkpoint(tmp_path / "queue", metadata={"global_steps": 7})
    again = TransferQueue(num_storage_units=3)
    again.kv_put("old", "q", tag={})
    version = again.version
    assert again.load_checkpoint(tmp_path / "queue") == {"global_steps": 7}
    assert again.version > version
    assert again.kv_list() == tq.kv_list()
    assert not diff(tq.snapshot(), again.snapshot())
    got, expected = again.kv_batch_get(["b", "a"], "p"), tq.kv_batch_get(["b", "a"], "p")
    for name in ("jagged", "dense"):
        assert all(map(torch.equal, got[name].unbind(), expected[name].unbind()))
    assert got["scalar"].tolist() == [2.0, 1.0]
    assert list(got["object"]) == ["text", {"a": [1, None, b"x"]}]
    number, array = got["array"]
    assert (type(number), number) == (np.float32, 1.5)
    assert array.tolist() == [0, 1, 2]
    assert again.kv_batch_get("b", "p", "only_b")["only_b"].values().tolist() == [[1, 1], [1, 1]]


def test_a_loaded_queue_goes_on(tq: TransferQueue, tmp_path: Path) -> None:
    tq.save_checkpoint(tmp_path)
    again = TransferQueue()
    again.load_checkpoint(tmp_path)
    again.kv_clear(["a", "b"], "p")
    again.kv_put("c", "p", {"jagged": torch.arange(9)})
    assert list(again.kv_batch_get("c", "p").keys()) == ["jagged"]


def test_a_second_save_replaces_the_first(tq: TransferQueue, tmp_path: Path) -> None:
    tq.save_checkpoint(tmp_path)
    tq.kv_clear(["a", "b", "marker"], "p")
    tq.save_checkpoint(tmp_path)
    assert len(list(tmp_path.glob("state-*"))) == 1
    again = TransferQueue()
    again.load_checkpoint(tmp_path)
    assert again.kv_list() == {"p": {}, "empty": {}}


def test_names_a_value_that_a_file_cannot_hold_and_keeps_the_old_checkpoint(tq: TransferQueue, tmp_path: Path) -> None:
    tq.save_checkpoint(tmp_path)
    tq.kv_put("a", "p", {"odd": Path("x")})
    with pytest.raises(QueueTypeError, match=r"field 'odd' holds a PosixPath"):
        tq.save_checkpoint(tmp_path)
    TransferQueue().load_checkpoint(tmp_path)


def test_refuses_what_is_no_whole_checkpoint(tq: TransferQueue, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        tq.load_checkpoint(tmp_path / "nope")
    tq.save_checkpoint(tmp_path)
    before = tq.kv_list()
    (state,) = tmp_path.glob("state-*")
    whole, metadata = state.read_bytes(), (tmp_path / "metadata.json").read_text()
    state.write_bytes(whole[:-1])
    with pytest.raises(QueueFileError, match="truncated"):
        tq.load_checkpoint(tmp_path)
    state.write_bytes(whole[:100] + b"!" + whole[101:])
    with pytest.raises(QueueFileError, match="damaged"):
        tq.load_checkpoint(tmp_path)
    state.unlink()
    with pytest.raises(QueueFileError, match="is gone"):
        tq.load_checkpoint(tmp_path)
    for text in ("", "{}", metadata[:40], '{"storage_saved": true}'):
        (tmp_path / "metadata.json").write_text(text)
        with pytest.raises(QueueFileError, match="no metadata of a queue checkpoint"):
            tq.load_checkpoint(tmp_path)
    (tmp_path / "metadata.json").write_text(json.dumps({**json.loads(metadata), "version": 99}))
    with pytest.raises(QueueFileError, match="version 99"):
        tq.load_checkpoint(tmp_path)
    assert tq.kv_list() == before


SAVE_FOR_EVER = """
import sys, torch
from tensordict import TensorDict
from kitlib.transfer_queue import TransferQueue
tq = TransferQueue()
for number in range(10_000):
    tq.kv_put("a", "p", {"x": torch.full((2_000_000,), number)}, tag={"n": number})
    tq.save_checkpoint(sys.argv[1], metadata={"n": number})
    print(number, flush=True)
"""


def test_a_kill_in_the_middle_of_a_save_leaves_a_loadable_checkpoint(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path / "queue")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    try:
        done = [int(process.stdout.readline()) for _ in range(2)]
        time.sleep(0.01)  # into the next save
    finally:
        process.kill()
    done += [int(line) for line in process.stdout]
    process.wait()
    tq = TransferQueue()
    number = tq.load_checkpoint(tmp_path / "queue")["n"]
    assert number in (done[-1], done[-1] + 1)
    assert tq.kv_list("p")["p"]["a"]["n"] == number
    assert set(tq.kv_batch_get("a", "p")["x"].values().tolist()) == {number}
