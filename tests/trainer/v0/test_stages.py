"""The serial pipeline stage by stage: what each adds to the batch, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kitlib.agent_loop import AgentLoopBase, AgentLoopOutput, register
from kitlib.config import ConfigError
from kitlib.run.curve import read_metrics
from kitlib.trainer.errors import BadRewardError, TrainerError
from kitlib.trainer.task_runner import TaskRunner
from kitlib.trainer.v0 import DataProto, PPOTrainerV0, SerialPipelineError
from kitlib.trainer.v0.columns import object_column
from tests.trainer.conftest import small_config

Start = Callable[..., PPOTrainerV0]


def generated(trainer: PPOTrainerV0) -> DataProto:
    batch = trainer.next_batch()
    gen_batch = trainer.get_gen_batch(batch).repeat(4)
    return batch.repeat(4).union(trainer.generate_sequences(gen_batch))


def columns(batch: DataProto) -> set[str]:
    return set(map(str, batch.batch.keys()))


def test_the_batch_grows_from_stage_to_stage(start_v0: Start) -> None:
    trainer = start_v0()
    batch = generated(trainer)
    assert len(batch) == 16
    assert {"prompts", "responses", "response_mask", "attention_mask", "position_ids", "rm_scores"} <= columns(batch)
    assert {"uid", "session_id", "__num_turns__", "acc", "data_source"} <= batch.non_tensor_batch.keys()
    assert "raw_prompt" not in batch.non_tensor_batch  # only generation reads it
    for stage, added in (
        ("compute_reward", {"token_level_scores"}),
        ("compute_log_prob", {"old_log_probs"}),
        ("compute_advantage", {"token_level_rewards", "advantages", "returns"}),
    ):
        had = columns(batch)
        batch = batch.union(getattr(trainer, stage)(batch))
        assert columns(batch) - had == added
    before = trainer.actor_rollout_wg.state_dict_for_rollout()
    trainer.update_actor(batch)
    after = trainer.actor_rollout_wg.state_dict_for_rollout()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert trainer.metrics["training/rollout_probs_diff_max"] < 1e-4  # padding was taken out before the model call


def test_a_stage_called_too_early_names_the_column_and_its_stage(start_v0: Start) -> None:
    trainer = start_v0()
    batch = generated(trainer)
    with pytest.raises(SerialPipelineError, match="no column 'token_level_scores' .compute_reward writes it"):
        trainer.compute_advantage(batch)
    with pytest.raises(SerialPipelineError, match="no column 'advantages' .compute_advantage writes it"):
        trainer.update_actor(batch)
    failed = [record for record in trainer.stage_records if record.error]
    assert [record.stage for record in failed] == ["compute_advantage", "update_actor"]


def test_balancing_moves_rows_and_their_objects_together(start_v0: Start) -> None:
    trainer = start_v0()
    batch = generated(trainer)
    where = {key: row for row, key in enumerate(zip(*_names(batch), strict=True))}
    responses = batch.batch["responses"].clone()
    trainer.balance_batch(batch)
    lengths = batch.batch["attention_mask"].sum(dim=1)
    top = int(lengths.argmax())
    assert lengths[: top + 1].tolist() == sorted(lengths[: top + 1].tolist())
    assert lengths[top:].tolist() == sorted(lengths[top:].tolist(), reverse=True)
    for row, key in enumerate(zip(*_names(batch), strict=True)):
        assert torch.equal(batch.batch["responses"][row], responses[where[key]])


def _names(batch: DataProto) -> tuple[list[str], list[int]]:
    return batch.non_tensor_batch["uid"].tolist(), batch.non_tensor_batch["session_id"].tolist()


def test_a_nan_reward_names_row_and_uid(start_v0: Start) -> None:
    trainer = start_v0()
    batch = generated(trainer)
    batch.batch["rm_scores"][5, 0] = float("nan")
    with pytest.raises(BadRewardError, match=f"rows .5. of uid {batch.non_tensor_batch['uid'][5]}"):
        trainer.compute_reward(batch)


def test_several_workers_share_the_rows(start_v0: Start) -> None:
    trainer = start_v0(actor_rollout_ref__rollout__agent__num_workers=2)
    batch = generated(trainer)
    uids, sessions = _names(batch)
    assert sessions == [0, 1, 2, 3] * 4
    assert len(set(uids)) == 4
    assert trainer.timing_raw["agent_loop/generate_sequences/max"] > 0


class Answering(AgentLoopBase):
    """Answers without asking a model: `answers` outputs, or an exception in session 2."""

    answers = 1

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        return [AgentLoopOutput([1], [2], [1], response_logprobs=[0.0]) for _ in range(self.answers)]


@register("silent")
class Silent(Answering):
    answers = 0


@register("twofold")
class Twofold(Answering):
    answers = 2


@register("broken")
class Broken(Answering):
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        if row["session_id"] == 2:
            raise RuntimeError("no network")
        return await super().run(sampling_params, **row)


@pytest.mark.parametrize(
    ("agent_name", "message"),
    [
        ("silent", "_0_0 has failed .* it returned no output"),
        ("broken", "_2_0 has failed .* RuntimeError: no network"),
        ("twofold", "_0 returned 2 outputs; a row of a DataProto is one session with one output"),
    ],
)
def test_a_failed_session_ends_the_run_and_is_named(start_v0: Start, agent_name: str, message: str) -> None:
    trainer = start_v0()
    gen_batch = trainer.get_gen_batch(trainer.next_batch()).repeat(4)
    gen_batch.non_tensor_batch["agent_name"] = object_column([agent_name] * 16)
    with pytest.raises(SerialPipelineError, match=f"session {gen_batch.non_tensor_batch['uid'][0]}{message}"):
        trainer.generate_sequences(gen_batch)
    trainer.agent_loop_manager.close()
    with pytest.raises(SerialPipelineError, match="closed AgentLoopManager"):
        trainer.generate_sequences(gen_batch)


def test_bypass_mode_takes_the_rollouts_log_probs(start_v0: Start) -> None:
    trainer = start_v0(algorithm__rollout_correction__bypass_mode=True)
    batch = generated(trainer)
    added = trainer.compute_log_prob(batch)
    assert torch.equal(added.batch["old_log_probs"], batch.batch["rollout_log_probs"])


def test_small_fetches_make_a_whole_batch(start_v0: Start) -> None:
    trainer = start_v0(data__gen_batch_size=1)
    assert len(trainer.next_batch()) == 4


def test_what_needs_the_queue_is_refused_before_anything_is_built() -> None:
    config = small_config(
        trainer__use_v1=False, algorithm__filter_groups__enable=True, actor_rollout_ref__actor__ppo_mini_batch_size=3
    )
    with pytest.raises(ConfigError) as caught:
        TaskRunner().start_v0(config)
    assert "algorithm.filter_groups.enable=true needs trainer.use_v1=true" in str(caught.value)
    assert "data.train_batch_size=4 is no multiple of actor_rollout_ref.actor.ppo_mini_batch_size=3" in str(
        caught.value
    )


def test_start_says_which_trainer_a_config_asks_for() -> None:
    with pytest.raises(TrainerError, match="call start_v0"):
        TaskRunner().start(small_config(trainer__use_v1=False))


def test_a_run_leaves_what_a_v1_run_leaves(tmp_path: Path) -> None:
    config = small_config(
        trainer__use_v1=False,
        trainer__logger=["jsonl"],
        trainer__test_freq=2,
        trainer__validation_data_dir=str(tmp_path / "val"),
        actor_rollout_ref__rollout__val_kwargs__n=2,
        actor_rollout_ref__rollout__val_kwargs__temperature=1.0,
        data__val_max_samples=7,
        actor_rollout_ref__rollout__agent__num_workers=4,  # 14 rows of validation are padded to 16, and unpadded
    )
    metrics = TaskRunner().run(config, run_dir=tmp_path)
    assert "val-core/kitlib/mult_tool/acc/mean@2" in metrics
    steps = read_metrics(tmp_path / "metrics.jsonl")
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert {"timing_s/gen", "timing_s/update_actor", "timing_s/testing", "perf/throughput"} <= steps[2].keys()
    assert steps[2]["training/off_policy/trajectory_staleness_worst/max"] == 0
    assert len((tmp_path / "rollouts.jsonl").read_text().splitlines()) == 2 * 16
    assert len((tmp_path / "val" / "2.jsonl").read_text().splitlines()) == 14
    assert (tmp_path / "model" / "model.safetensors").exists()
