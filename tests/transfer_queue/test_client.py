"""The metadata level: readiness, consumption, samplers, the streaming loader."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from kitlib.transfer_queue import (
    GRPOGroupNSampler,
    KVBatchMeta,
    MissingFieldsError,
    QueueTimeoutError,
    QueueValueError,
    RankAwareSampler,
    Sampler,
    SeqlenBalancedSampler,
    TransferQueue,
    TransferQueueClient,
)
from kitlib.transfer_queue.samplers import Row
from kitlib.transfer_queue.streaming import StreamingDataLoader, StreamingDataset


def client_of(sampler: Sampler | None = None, **options: Any) -> tuple[TransferQueue, TransferQueueClient]:
    tq = TransferQueue()
    return tq, TransferQueueClient(tq, sampler, **{"timeout": 0.0, **options})


def fill(tq: TransferQueue, keys: Sequence[str], field: str = "x", **tags: Sequence[Any]) -> None:
    rows = TensorDict({field: torch.arange(len(keys)).unsqueeze(1)}, batch_size=len(keys))
    tq.kv_batch_put(list(keys), "p", rows, [{n: values[i] for n, values in tags.items()} for i in range(len(keys))])


class TestFetch:
    def test_hands_out_ready_rows_once_a_task(self) -> None:
        tq, client = client_of()
        fill(tq, ["a", "b", "c"])
        meta = client.get_meta(["x"], 2, "p", task_name="actor")
        assert (meta.keys, meta.fields, meta.partition_id) == (["a", "b"], ["x"], "p")
        assert len(client.get_data(meta)) == 2
        with pytest.raises(QueueTimeoutError, match="asked for 2 rows .* 1 are ready"):
            client.get_meta(["x"], 2, "p", task_name="actor")
        assert client.get_meta(["x"], 3, "p", task_name="critic").keys == ["a", "b", "c"]

    def test_a_row_is_ready_when_it_has_every_field_asked_for(self) -> None:
        tq, client = client_of(polling_mode=True)
        fill(tq, ["a", "b"])
        fill(tq, ["b"], field="y")
        assert client.get_meta(["x", "y"], 1, "p", task_name="t").keys == ["b"]
        assert client.get_meta(["x", "y"], 1, "p", task_name="t").size == 0
        assert client.get_meta(["nope"], 1, "p", task_name="t").size == 0

    def test_waits_for_rows_to_come(self) -> None:
        tq, client = client_of(timeout=200.0)
        late = threading.Thread(target=fill, args=(tq, ["a"]))
        late.start()
        assert client.get_meta(["x"], 1, "p", task_name="t").keys == ["a"]
        late.join()

    def test_a_key_that_was_cleared_and_came_back_is_a_new_row(self) -> None:
        tq, client = client_of()
        fill(tq, ["a"])
        client.get_meta(["x"], 1, "p", task_name="t")
        tq.kv_clear("a", "p")
        fill(tq, ["a"])
        assert client.get_meta(["x"], 1, "p", task_name="t").keys == ["a"]

    def test_consumption_can_be_read_and_reset(self) -> None:
        tq, client = client_of()
        fill(tq, ["a", "b"])
        assert not client.is_consumed("t", "p")
        client.get_meta(["x"], 2, "p", task_name="t")
        assert client.is_consumed("t", "p")
        assert tq.snapshot().partitions["p"].consumed == {"t": {"a", "b"}}
        client.reset_consumption("p", "t")
        assert client.get_meta(["x"], 2, "p", task_name="t").size == 2
        client.reset_consumption("p")
        assert tq.snapshot().partitions["p"].consumed == {}

    def test_two_threads_never_get_the_same_row(self) -> None:
        tq, client = client_of(timeout=200.0)
        fill(tq, [f"k{number}" for number in range(40)])
        got: list[str] = []

        def take() -> None:
            for _ in range(5):
                got.extend(client.get_meta(["x"], 2, "p", task_name="t").keys)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == sorted({f"k{number}" for number in range(40)})

    @pytest.mark.parametrize("wrong", [{"mode": "look", "task_name": "t"}, {"task_name": None}, {"batch_size": 0}])
    def test_names_a_wrong_argument(self, wrong: dict) -> None:
        _, client = client_of()
        with pytest.raises(QueueValueError, match="get_meta needs"):
            client.get_meta(**{"data_fields": ["x"], "batch_size": 1, "partition_id": "p", "task_name": "t", **wrong})


class TestPut:
    def test_rows_without_keys_get_some_and_results_go_to_the_same_rows(self) -> None:
        tq, client = client_of()
        meta = client.put(TensorDict({"x": torch.ones(3, 1)}, batch_size=3), partition_id="p")
        client.put(TensorDict({"y": torch.zeros(3, 1)}, batch_size=3), meta)
        assert list(tq.kv_batch_get(meta.keys, "p").keys()) == ["x", "y"]
        assert client.is_produced(["x", "y"], "p")
        client.clear_samples(meta)
        assert not client.is_produced(["x"], "p")
        with pytest.raises(QueueValueError, match="partition_id"):
            client.put(TensorDict({"x": torch.ones(1, 1)}, batch_size=1))

    def test_inserted_rows_are_not_ready_before_their_fields_come(self) -> None:
        _, client = client_of(polling_mode=True)
        meta = client.get_meta(["x"], 2, "p", mode="insert")
        assert client.get_meta(["x"], 2, "p", task_name="t").size == 0
        forced = client.get_meta(["x"], 0, "p", mode="force_fetch")
        assert forced.keys == meta.keys
        with pytest.raises(MissingFieldsError):
            client.get_data(forced)


class TestSamplers:
    def test_groups_are_whole_and_never_mixed(self) -> None:
        tq, client = client_of(GRPOGroupNSampler(2), polling_mode=True)
        fill(tq, ["old_0_0"])
        fill(tq, ["u1_0_0", "u2_0_0", "u2_1_0"])  # u1 is short of one
        tq.kv_clear("old_0_0", "p")  # its index will be used again
        fill(tq, ["u3_0_0", "u3_1_0"])
        assert client.get_meta(["x"], 4, "p", task_name="t").keys == ["u2_0_0", "u2_1_0", "u3_0_0", "u3_1_0"]
        assert client.get_meta(["x"], 2, "p", task_name="t").size == 0
        fill(tq, ["u1_1_0"])
        assert client.get_meta(["x"], 2, "p", task_name="t").keys == ["u1_0_0", "u1_1_0"]
        with pytest.raises(QueueValueError, match="no multiple"):
            client.get_meta(["x"], 3, "p", task_name="t")

    def test_rows_without_keys_are_grouped_as_they_were_put(self) -> None:
        tq, client = client_of(GRPOGroupNSampler(2), polling_mode=True)
        meta = client.put(TensorDict({"x": torch.ones(6, 1)}, batch_size=6), partition_id="p")
        tq.kv_clear(meta.keys[0], "p")  # the first group is short now
        assert client.get_meta(["x"], 4, "p", task_name="t").keys == meta.keys[2:]

    def test_ranks_of_one_replica_get_the_same_rows_and_others_get_others(self) -> None:
        tq, client = client_of(RankAwareSampler())
        fill(tq, ["a", "b", "c", "d"])

        def ask(rank: int, batch: int) -> list[str]:
            config = {"dp_rank": rank, "batch_index": batch}
            return client.get_meta(["x"], 1, "p", task_name="t", sampling_config=config).keys

        assert [ask(0, 0), ask(1, 0), ask(0, 0), ask(0, 1)] == [["a"], ["b"], ["a"], ["c"]]
        with pytest.raises(QueueValueError, match="dp_rank"):
            client.get_meta(["x"], 1, "p", task_name="t")

    def test_tokens_are_balanced_over_ranks_in_whole_groups(self) -> None:
        tq, client = client_of(SeqlenBalancedSampler(2, dp_size=2))
        keys = [f"u{group}_{session}_0" for group in range(4) for session in range(2)]
        fill(tq, keys, seq_len=[100, 100, 90, 90, 10, 10, 5, 5])
        shares = []
        for rank in range(2):
            config = {"dp_rank": rank, "batch_index": 0}
            shares.append(client.get_meta(["x"], 4, "p", task_name="t", sampling_config=config))
        assert sorted(shares[0].keys + shares[1].keys) == sorted(keys)
        assert [sum(tag["seq_len"] for tag in share.tags) for share in shares] == [210, 200]

    def test_balancing_needs_lengths(self) -> None:
        tq, client = client_of(SeqlenBalancedSampler(1))
        fill(tq, ["u1_0_0"])
        with pytest.raises(QueueValueError, match="'u1_0_0' has no tag 'seq_len'"):
            client.get_meta(["x"], 1, "p", task_name="t", sampling_config={"dp_rank": 0, "batch_index": 0})

    def test_a_sampler_of_ones_own(self) -> None:
        class Newest(Sampler):
            def sample(self, ready: Sequence[Row], batch_size: int, **config: Any) -> Sequence[Row]:
                return ready[-batch_size:]

        tq, client = client_of(Newest())
        fill(tq, ["a", "b", "c"])
        assert client.get_meta(["x"], 2, "p", task_name="t").keys == ["b", "c"]


class TestStreaming:
    def test_yields_micro_batches_while_rows_come_in_and_ends(self) -> None:
        tq, client = client_of(RankAwareSampler(), timeout=0.3)
        fill(tq, ["a", "b", "c"])
        loader = StreamingDataLoader(StreamingDataset(client, 3, 2, ["x"], "p", "t"))
        seen: list[list[str]] = []
        for data, meta in loader:
            assert isinstance(meta, KVBatchMeta)
            assert len(data) == len(meta)
            seen.append(meta.keys)
            if len(seen) == 1:
                fill(tq, ["d", "e", "f"])
        assert seen == [["a", "b"], ["c"], ["d", "e"], ["f"]]
        loader.reset()
        assert [meta.keys for _, meta in loader] == seen
        fill(tq, ["z"], field="x")
        with pytest.raises(QueueTimeoutError, match="asked for 3 rows"):
            list(loader)

    def test_names_a_wrong_argument(self) -> None:
        _, client = client_of()
        with pytest.raises(QueueValueError, match="micro_batch_size 4"):
            StreamingDataset(client, 2, 4, ["x"], "p", "t")
        with pytest.raises(QueueValueError, match="data_fields"):
            StreamingDataset(client, 2, 2, [], "p", "t")
