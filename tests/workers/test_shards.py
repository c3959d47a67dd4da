"""The rows of the shard map: every parameter once, cut as torch.chunk cuts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kitlib.inspector import shard_map
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.engine.shards import rows_per_rank


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 70])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_rows_are_cut_as_torch_cuts_them(length: int, num_ranks: int) -> None:
    pieces = [len(piece) for piece in torch.zeros(length).chunk(num_ranks)]
    assert rows_per_rank(length, num_ranks) == [*pieces, *[0] * (num_ranks - len(pieces))]


def test_every_parameter_has_a_row_and_the_map_takes_them(make_worker: Callable[..., ActorRolloutRefWorker]) -> None:
    engine = make_worker().engine
    rows = engine.shards()
    parameters = dict(engine.model.named_parameters())
    assert [row[0] for row in rows] == list(parameters)
    assert all(sizes == (parameters[name].to_local().nbytes,) for name, _, _, sizes in rows)
    assert {placement for _, _, placement, _ in rows} == {"Shard(0)"}
    assert f"{len(rows)} parameters" in shard_map(rows).headline and "on one rank" in shard_map(rows).headline
