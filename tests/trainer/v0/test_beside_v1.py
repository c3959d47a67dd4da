"""V0 and V1 differ in the data flow and in nothing else: the same trajectories give the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kitlib.agent_loop import AgentLoopOutput
from kitlib.keys import TrajectoryKey
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.observers import Observer
from kitlib.trainer.task_runner import TaskRunner
from kitlib.trainer.v0 import DataProto, PPOTrainerV0
from kitlib.trainer.v0.columns import object_column
from kitlib.trainer.v0.padding import collate_outputs
from kitlib.transfer_queue import KVBatchMeta, padded
from tests.trainer.conftest import small_config

# V1 calls a response clipped if it is the longest of the batch, V0 if it fills the width of the config.
BY_WIDTH = {f"{name}/clip_ratio" for name in ("prompt_length", "response_length", "response_length_non_aborted")}


def as_dataproto(trainer: PPOTrainer, batch: KVBatchMeta) -> DataProto:
    """The rows of a V1 batch as the V0 agent loop would have handed them over, in the same order."""
    fields = ("prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores", "extra_fields")
    data = trainer.pull(batch, *fields)
    outputs = [
        AgentLoopOutput(
            prompt_ids=row["prompts"].tolist(),
            response_ids=row["responses"].tolist(),
            response_mask=row["response_mask"].tolist(),
            response_logprobs=row["rollout_log_probs"].tolist(),
            reward_score=row["rm_scores"].sum().item(),
            num_turns=2,
            extra_fields=row["extra_fields"],
        )
        for row in data
    ]
    rollout = trainer.config.actor_rollout_ref.rollout
    result = collate_outputs(outputs, rollout.prompt_length, rollout.response_length, trainer.tokenizer.pad_token_id)
    result.non_tensor_batch["uid"] = object_column([TrajectoryKey.parse(key).uid for key in batch.keys])
    return result


@pytest.mark.parametrize("overrides", [{}, {"actor_rollout_ref__actor__ppo_mini_batch_size": 2}])
def test_same_trajectories_give_the_same_advantages_and_the_same_update(
    start: Callable[..., PPOTrainer], start_v0: Callable[..., PPOTrainerV0], overrides: dict[str, Any]
) -> None:
    v1, v0 = start(**overrides), start_v0(**overrides)
    v1.begin_step()
    v1.prepare_step()
    handle = v1.balance_batch(v1.sample())
    batch = as_dataproto(v1, handle)

    handle = v1.compute_advantage(v1.compute_old_log_prob(handle))
    batch = v0.compute_reward(batch)
    batch = v0.compute_advantage(batch.union(v0.compute_log_prob(batch)))
    width = batch.batch["responses"].shape[1]
    for name in ("old_log_probs", "advantages", "returns"):
        assert torch.equal(batch.batch[name], padded(v1.pull(handle, name)[name], width)), name
    assert batch.batch["advantages"].abs().sum() > 0

    v1.update_actor(handle)
    v0.update_actor(batch)
    updates = [{n: m for n, m in trainer.metrics.items() if n.startswith("actor/")} for trainer in (v0, v1)]
    assert updates[0] == pytest.approx(updates[1], rel=1e-6)  # actor/entropy is summed over another width
    ours, theirs = (trainer.actor_rollout_wg.state_dict_for_rollout() for trainer in (v0, v1))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


class Metrics(Observer):
    """Keeps what every step reports."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def on_metrics(self, trainer: PPOTrainer, metrics: dict[str, Any], step: int) -> None:
        self.steps.append(dict(metrics))


KL = {"algorithm__use_kl_in_reward": True, "actor_rollout_ref__actor__use_kl_loss": True}
CORRECTION = {"algorithm__rollout_correction__rollout_is": "token"}
CRITIC = {"algorithm__adv_estimator": "gae", "trainer__critic_warmup": 2}


@pytest.mark.parametrize("overrides", [{}, KL | CORRECTION, CRITIC], ids=["grpo", "kl and correction", "critic"])
def test_a_run_of_both_is_the_same_run(overrides: dict[str, Any]) -> None:
    """Same seed: the same prompts, samples, rewards and updates, up to the order in which rows are added up."""
    runs = []
    for use_v1 in (True, False):
        metrics = Metrics()
        TaskRunner().run(
            small_config(trainer__use_v1=use_v1, trainer__total_training_steps=3, trainer__test_freq=3, **overrides),
            observers=[metrics],
        )
        runs.append(metrics.steps)
    assert len(runs[0]) == len(runs[1]) == 4  # three steps and the validation before them
    for v1, v0 in zip(*runs, strict=True):
        names = [name for name in v1 if not name.startswith(("timing", "perf")) and name not in BY_WIDTH]
        assert names
        for name in names:
            assert v0[name] == pytest.approx(v1[name], rel=1e-3, abs=1e-3), name
