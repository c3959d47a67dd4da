"""The stages on the real parts: what each leaves in the queue, called one by one as a reader calls them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kitlib.contract import STAGES, ContractError, needs
from kitlib.keys import TrajectoryKey
from kitlib.trainer.base import PPOTrainer
from kitlib.trainer.errors import BadRewardError
from kitlib.transfer_queue import KVBatchMeta, take_snapshot
from tests.trainer.conftest import small_config

Start = Callable[..., PPOTrainer]


def fields_now(trainer: PPOTrainer, partition_id: str = "train") -> set[str]:
    """Fields that every trajectory row has."""
    part = take_snapshot(trainer.tq).partitions[partition_id]
    rows = [set(part.fields_of(key)) for key, tag in zip(part.keys, part.tags, strict=True) if not tag.get("is_prompt")]
    return set.intersection(*rows) if rows else set()


def sampled(trainer: PPOTrainer) -> KVBatchMeta:
    trainer.begin_step()
    trainer.prepare_step()
    return trainer.sample()


def test_one_step_writes_what_the_contract_says_and_leaves_nothing(start: Start) -> None:
    trainer = start()
    batch = sampled(trainer)
    assert len(batch) == 16
    assert set(needs("generate_sequences", trainer.config).writes) <= fields_now(trainer)
    for name in ("balance_batch", "compute_old_log_prob", "compute_advantage"):
        before = fields_now(trainer)
        batch = getattr(trainer, name)(batch)
        assert fields_now(trainer) - before == set(needs(name, trainer.config).writes) - before
    weights = trainer.actor_rollout_wg.state_dict_for_rollout()
    batch = trainer.update_actor(batch)
    changed = trainer.actor_rollout_wg.state_dict_for_rollout()
    assert any(not torch.equal(weights[name], changed[name]) for name in weights)
    trainer.end_step()
    metrics = trainer.compute_metrics(batch)
    assert metrics["training/rollout_probs_diff_max"] < 1e-4  # on policy: server and trainer agree
    assert {"actor/pg_loss", "actor/grad_norm", "critic/score/mean", "timing_s/step", "perf/throughput"} <= set(metrics)
    trainer.clear(batch)
    assert trainer.tq.kv_list("train") == {"train": {}}


def test_submitting_returns_at_once_and_marks_the_prompts(start: Start) -> None:
    trainer = start()
    prompts = trainer.next_train_batch()
    trainer.checkpoint_manager.abort_replicas()  # nothing is generated until they resume
    assert trainer.submit_batch_to_rollout(prompts) == 4
    tags = trainer.tq.kv_list("train")["train"]
    uids = prompts.get("uid").tolist()
    assert all(tags[uid]["is_prompt"] and tags[uid]["global_steps"] == 1 for uid in uids)
    assert {tags[uid]["status"] for uid in uids} <= {"pending", "running"}
    trainer.checkpoint_manager.resume_generation_replicas()
    trainer.sample()


def test_rows_of_a_group_share_uid_and_prompt_and_know_their_weights(start: Start) -> None:
    trainer = start()
    batch = sampled(trainer)
    data = trainer.pull(batch, "uid", "prompts", "session_id")
    for key, uid, session_id in zip(batch.keys, data.get("uid").tolist(), data.get("session_id").tolist(), strict=True):
        assert TrajectoryKey.parse(key) == TrajectoryKey(uid, session_id, 0)
    assert {tag["min_global_steps"] for tag in batch.tags} == {0}
    prompts = dict.fromkeys(data.get("uid").tolist())
    for uid, prompt in zip(data.get("uid").tolist(), data["prompts"].unbind(), strict=True):
        assert prompts[uid] is None or torch.equal(prompts[uid], prompt)
        prompts[uid] = prompt


def test_padding_rows_fill_the_mini_batch_and_stay_out_of_the_metrics(start: Start) -> None:
    trainer = start()
    full = sampled(trainer)
    short = full.select_keys(full.keys[:13])
    batch = trainer.balance_batch(short)
    assert len(batch) == 16
    assert sum(bool(tag.get("is_padding")) for tag in batch.tags) == 3
    batch = trainer.update_actor(trainer.compute_advantage(trainer.compute_old_log_prob(batch)))
    trainer.end_step()
    metrics = trainer.compute_metrics(batch)
    assert metrics["prompt_length/max"] < 127
    assert metrics["perf/total_num_tokens"] == sum(tag["seq_len"] for tag in batch.tags)


def test_a_row_that_lost_a_field_stops_the_stage_that_needs_it(start: Start) -> None:
    trainer = start()
    batch = trainer.compute_old_log_prob(trainer.balance_batch(sampled(trainer)))
    victim = batch.keys[3]
    kept = trainer.tq.kv_batch_get(keys=[victim], partition_id="train")
    trainer.tq.kv_clear(keys=[victim], partition_id="train")
    trainer.tq.kv_batch_put(keys=[victim], partition_id="train", fields=kept.exclude("rm_scores"), tags=[batch.tags[3]])
    with pytest.raises(ContractError, match=f"needs rm_scores on every row; 1 of 16 lacks it: {victim}"):
        trainer.compute_advantage(batch)


def test_a_nan_reward_names_its_row(start: Start) -> None:
    trainer = start()
    batch = trainer.compute_old_log_prob(trainer.balance_batch(sampled(trainer)))
    scores = trainer.pull(batch, "rm_scores")["rm_scores"].unbind()
    scores[5][-1] = float("nan")
    trainer.push(batch, rm_scores=torch.nested.as_nested_tensor(list(scores), layout=torch.jagged))
    with pytest.raises(BadRewardError, match=batch.keys[5]):
        trainer.compute_advantage(batch)


def test_an_update_is_recorded_if_asked_for(start: Start) -> None:
    trainer = start(kitlib__record_update=True)
    batch = sampled(trainer)
    for stage in (trainer.balance_batch, trainer.compute_old_log_prob, trainer.compute_advantage, trainer.update_actor):
        batch = stage(batch)
    names = ["update_log_probs", "old_log_probs", "loss_share", "response_mask"]
    data = trainer.tq.kv_batch_get(batch.keys, "train", names)
    new, old = (data[name].values() * data["response_mask"].values() for name in names[:2])
    torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-4)  # one mini-batch: the weights are those of before
    assert data["loss_share"].values().abs().sum().item() in (0.0, pytest.approx(1.0))
    assert "actor/pg_loss" in trainer.metrics and "metrics" not in (batch.extra_info or {})


def test_bypass_mode_takes_the_rollouts_log_probs(start: Start) -> None:
    trainer = start(algorithm__rollout_correction__bypass_mode=True)
    batch = trainer.compute_old_log_prob(trainer.balance_batch(sampled(trainer)))
    data = trainer.pull(batch, "old_log_probs", "rollout_log_probs")
    assert torch.equal(data["old_log_probs"].values(), data["rollout_log_probs"].values())
    assert "log_probs" not in fields_now(trainer)


def test_prompts_come_in_whole_chunks_with_new_uids_over_epochs(start: Start) -> None:
    trainer = start(data__train_max_samples=8)
    seen = [trainer.fetch_one_gen_batch() for _ in range(3)]  # 8 rows make two chunks: the third is the next epoch
    uids = [uid for chunk in seen for uid in chunk.get("uid").tolist()]
    assert len(set(uids)) == 12
    assert all(len(chunk) == 4 for chunk in seen)


def test_every_stage_of_a_run_is_in_the_contract_and_recorded(start: Start) -> None:
    trainer = start(trainer__val_before_train=True)
    trainer.global_steps = 0
    metrics = trainer.fit()
    assert any(name.startswith("val-core/kitlib/mult_tool/") for name in metrics)
    ran = {record.stage for record in trainer.stage_records}
    assert ran <= set(STAGES)
    expected = {name for name in STAGES if needs(name, small_config()).runs}
    assert ran == expected - {"generate_sequences", "save_checkpoint"} | {"log_rollout_data"}
    assert all(record.error is None for record in trainer.stage_records)
    assert trainer.tq.kv_list() == {"val": {}, "train": {}}
