"""The replay buffer in sync mode: when it wakes, what it takes, what it leaves, and how a wait that cannot end is
ended."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from kitlib.replay_buffer import PartitionView, ReplayBuffer, SampleError
from kitlib.transfer_queue import TransferQueue, list_of_dict_to_tensordict


@pytest.fixture
def tq():
    queue = TransferQueue()
    yield queue
    queue.close()


def marker(tq: TransferQueue, uid: str, status: str, step: int = 1, partition_id: str = "train") -> None:
    tag = {"is_prompt": True, "status": status, "global_steps": step}
    tq.kv_put(key=uid, partition_id=partition_id, tag=tag)


def rows(tq: TransferQueue, uid: str, num_sessions: int = 2, partition_id: str = "train") -> list[str]:
    keys = [f"{uid}_{session}_0" for session in range(num_sessions)]
    fields = list_of_dict_to_tensordict([{"responses": torch.arange(3)} for _ in keys])
    tags = [{"status": "success", "seq_len": 3} for _ in keys]
    tq.kv_batch_put(keys=keys, partition_id=partition_id, fields=fields, tags=tags)
    return keys


def group(tq: TransferQueue, uid: str, status: str = "finished", step: int = 1, **kwargs) -> list[str]:
    keys = rows(tq, uid, **kwargs)
    marker(tq, uid, status, step)
    return keys


def test_the_oldest_prompts_are_taken_and_only_their_markers_are_cleared(tq: TransferQueue) -> None:
    group(tq, "new", step=5)
    old = group(tq, "old", step=2)
    batch, metrics = ReplayBuffer(tq).sample(5, "train", batch_size=1)
    assert batch.keys == old
    assert (batch.partition_id, batch.fields, metrics) == ("train", None, {})
    assert set(tq.kv_list("train")["train"]) == {"new", "new_0_0", "new_1_0", "old_0_0", "old_1_0"}


def test_rows_come_in_the_order_of_first_write_with_their_tags(tq: TransferQueue) -> None:
    keys = rows(tq, "b") + rows(tq, "a")
    marker(tq, "a", "finished", step=1)
    marker(tq, "b", "finished", step=2)
    batch, _ = ReplayBuffer(tq).sample(2, "train", batch_size=2)
    assert batch.keys == keys
    assert batch.tags[0] == {"status": "success", "seq_len": 3}


def test_a_failed_group_is_sampleable_with_the_rows_it_has(tq: TransferQueue) -> None:
    kept = group(tq, "short", status="failure", num_sessions=1)
    batch, _ = ReplayBuffer(tq).sample(1, "train", batch_size=1)
    assert batch.keys == kept


def test_sample_wakes_when_the_last_prompt_finishes(tq: TransferQueue) -> None:
    group(tq, "a")
    rows(tq, "b")
    marker(tq, "b", "running")
    woken = threading.Event()
    buffer = ReplayBuffer(tq, poll_interval=3600, give_up_after=3600)
    thread = threading.Thread(target=lambda: (buffer.sample(1, "train", 2), woken.set()), daemon=True)
    thread.start()
    assert not woken.wait(0.05)
    marker(tq, "b", "finished")
    assert woken.wait(100)  # far below the poll interval: the change itself woke it
    thread.join()


def test_the_partitions_do_not_mix(tq: TransferQueue) -> None:
    rows(tq, "v", partition_id="val")
    marker(tq, "v", "finished", partition_id="val")
    keys = group(tq, "t")
    batch, _ = ReplayBuffer(tq).sample(1, "train", batch_size=1)
    assert batch.keys == keys
    assert "v" in tq.kv_list("val")["val"]


def test_a_dead_background_task_ends_the_wait_with_its_exception(tq: TransferQueue) -> None:
    marker(tq, "a", "running")
    failed = threading.Event()

    def raise_if_failed() -> None:
        if failed.is_set():
            raise ValueError("reward function of a_0_0")

    timer = threading.Timer(0.05, lambda: (failed.set(), marker(tq, "a", "running")))
    timer.start()
    with pytest.raises(ValueError, match="reward function of a_0_0"):
        ReplayBuffer(tq, poll_interval=5, raise_if_failed=raise_if_failed).sample(1, "train", 1)
    timer.join()  # before the queue closes


def test_waiting_for_more_prompts_than_there_are_is_an_error_with_the_counts(tq: TransferQueue) -> None:
    group(tq, "a")
    began = time.monotonic()
    with pytest.raises(
        SampleError, match=r"(?s)1 of 2 ready.*pending 0, running 0, finished 1, failure 0.*Submit 1 more"
    ):
        ReplayBuffer(tq, poll_interval=3600, give_up_after=0.05).sample(1, "train", batch_size=2)
    assert time.monotonic() - began < 100
    assert "a" in tq.kv_list("train")["train"]  # nothing is lost


def test_a_batch_without_any_row_is_an_error_and_keeps_the_markers(tq: TransferQueue) -> None:
    marker(tq, "a", "failure")
    with pytest.raises(SampleError, match="the 1 chosen prompt has no trajectory row"):
        ReplayBuffer(tq).sample(1, "train", batch_size=1)
    assert "a" in tq.kv_list("train")["train"]


def test_an_unknown_status_word_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="prompt a in partition 'train' has the unknown status 'done'"):
        PartitionView.of("train", {"a": {"is_prompt": True, "status": "done", "global_steps": 1}})


def test_a_marker_without_step_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match="prompt a in partition 'train' has no tag 'global_steps'"):
        PartitionView.of("train", {"a": {"is_prompt": True, "status": "running"}})


def test_a_slow_store_without_change_signal_is_polled(tq: TransferQueue) -> None:
    class Plain:
        """A store with the verbs alone, as the package has them."""

        def __init__(self) -> None:
            self.looks = 0

        def kv_list(self, partition_id=None):
            self.looks += 1
            if self.looks == 3:
                group(tq, "a")
            return tq.kv_list(partition_id)

        def kv_clear(self, keys, partition_id):
            tq.kv_clear(keys, partition_id)

    plain = Plain()
    marker(tq, "a", "running")
    batch, _ = ReplayBuffer(plain, poll_interval=0.01).sample(1, "train", 1)
    assert (len(batch), plain.looks) == (2, 3)
