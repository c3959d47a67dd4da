"""Mutations under which 02_replace_dataproto_by_keys must fail."""

from __future__ import annotations


def union_does_not_count_the_rows() -> None:
    """Columns of any length are joined."""
    from kitlib.trainer.v0 import DataProto

    DataProto.union = lambda self, other: self


def a_put_forgets_which_row_is_whose() -> None:
    """The rows of a put go to the keys in the order of the alphabet, backwards."""
    from kitlib.transfer_queue import TransferQueue

    original = TransferQueue.kv_batch_put
    TransferQueue.kv_batch_put = lambda self, keys, *args, **named: original(
        self, sorted(keys, reverse=True), *args, **named
    )


def the_roads_compute_different_advantages() -> None:
    """The advantage stage of V1 writes half of what that of V0 does."""
    from kitlib.trainer import advantage

    original = advantage.compute_advantage_for_multi_trajectories
    advantage.compute_advantage_for_multi_trajectories = lambda *a, **k: tuple(x / 2 for x in original(*a, **k))
