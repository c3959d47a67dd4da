"""One batch on one rank, in micro-batches, and on two gloo ranks: the same gradient, hence the same weights.

The two ranks score slice by slice over the vocabulary, and free weights between forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.transfer_queue import jagged
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.critic import CriticWorker
from kitlib.workers.engine.scoring import TokenScorer
from kitlib.workers.padding import response_from_nested
from tests.workers.conftest import make_batch, make_config, run_two_ranks, tiny_model, with_settings
from tests.workers.test_critic import critic_batch, value_model

OVERRIDES = ("actor.optim.lr=0.01", "actor.use_kl_loss=true", "actor.kl_loss_coef=0.1", "actor.entropy_coeff=0.01")
DYNAMIC = ("actor.use_dynamic_bsz=true", "actor.ppo_max_token_len_per_gpu=40")
NUM_ROWS = 8
SLICE = 7  # words of the vocabulary


def take(data: TensorDict, rows: list[int]) -> TensorDict:
    columns = {name: jagged([data[name][i] for i in rows]) for name in data.keys()}
    return TensorDict(columns, batch_size=[len(rows)])


def run(overrides: tuple[str, ...], rows: list[int]) -> dict[str, object]:
    """Score and update on these rows of the batch; everything that is to be equal afterwards."""
    worker = ActorRolloutRefWorker(make_config(*OVERRIDES, *overrides), tiny_model())
    mine = take(make_batch(NUM_ROWS), rows)
    settings = {"mini_batch_size": NUM_ROWS, "global_batch_size": NUM_ROWS, "calculate_entropy": True}
    mine = with_settings(mine, **settings)
    scores = response_from_nested(worker.compute_log_prob(mine)["log_probs"], mine["response_mask"])
    mine.set_non_tensor("record_update", True)
    output = worker.update_actor(mine)
    metrics, shares = output.get_non_tensor("metrics"), list(output["loss_share"].unbind())
    result = {
        "scores": list(scores.unbind()),
        "shares": shares,
        "metrics": metrics,
        "weights": worker.state_dict_for_rollout(),
    }
    local = {name: value.to_local().nbytes for name, value in worker.engine.model.named_parameters()}
    result |= {"shards": worker.engine.shards(), "local_bytes": local}
    worker.close()
    return result


def run_critic(overrides: tuple[str, ...], rows: list[int]) -> dict[str, object]:
    """As `run`, for the critic."""
    config = make_config(*(override for override in overrides if "actor." in override))  # the critic's settings follow
    config.update("critic.optim.lr", 0.01, "test")
    config.update("critic.ppo_max_token_len_per_gpu", 40, "test")
    worker = CriticWorker(config, value_model())
    mine = with_settings(take(critic_batch(NUM_ROWS), rows), mini_batch_size=NUM_ROWS, global_batch_size=NUM_ROWS)
    scores = response_from_nested(worker.compute_values(mine)["values"], mine["response_mask"])
    metrics = worker.update_critic(mine)
    result = {"scores": list(scores.unbind()), "metrics": metrics, "weights": worker.engine.full_state_dict()}
    worker.close()
    return result


def rank_main(rank: int, folder: str) -> None:
    # Rank 1 has the longer rows: with a token budget its own count of micro-batches is another one than rank 0's.
    order = make_batch(NUM_ROWS)["input_ids"].offsets().diff().sort().indices.tolist()
    rows = order[rank * NUM_ROWS // 2 : (rank + 1) * NUM_ROWS // 2]
    TokenScorer.__init__.__defaults__ = (SLICE,)
    torch.save({"rows": rows, **run(DYNAMIC, rows)}, f"{folder}/rank{rank}.pt")
    torch.save({"rows": rows, **run_critic(DYNAMIC, rows)}, f"{folder}/critic{rank}.pt")


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert left.keys() == right.keys()
    return max((left[name] - right[name]).abs().max().item() for name in left)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_ranks_make_the_update_of_one(tmp_path: Path) -> None:
    run_two_ranks(rank_main, tmp_path)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    for number, rank in enumerate(ranks):
        assert {name: sizes[number] for name, _, _, sizes in rank["shards"]} == rank["local_bytes"]
    compare(run, ranks)
    compare(run_critic, [torch.load(tmp_path / f"critic{rank}.pt") for rank in range(2)])


def compare(run: Callable[..., dict[str, Any]], ranks: list[dict[str, Any]]) -> None:
    whole = run((), list(range(NUM_ROWS)))
    pieces = run(("actor.ppo_micro_batch_size_per_gpu=3",), list(range(NUM_ROWS)))
    for rank in ranks:
        for row, score in zip(rank["rows"], rank["scores"], strict=True):
            torch.testing.assert_close(score, whole["scores"][row], rtol=1e-4, atol=1e-5)
        for row, share in zip(rank["rows"], rank.get("shares", ()), strict=False):
            torch.testing.assert_close(share, whole["shares"][row], rtol=1e-3, atol=1e-6)
    for other in (pieces, *ranks):
        assert other["metrics"] == pytest.approx(whole["metrics"], rel=1e-4, abs=1e-6)
    gaps = {
        "micro-batches": largest_difference(pieces["weights"], whole["weights"]),
        "rank 0 of 2": largest_difference(ranks[0]["weights"], whole["weights"]),
        "rank 1 of 2": largest_difference(ranks[1]["weights"], whole["weights"]),
    }
    print(
        "largest difference of a weight after one step of lr 0.01:", {name: f"{gap:.1e}" for name, gap in gaps.items()}
    )
    assert max(gaps.values()) < 5e-5
    assert largest_difference(ranks[0]["weights"], ranks[1]["weights"]) == 0.0
