"""Rules between settings: each broken one gives a sentence that names the settings and the way out."""

from __future__ import annotations

import pytest
import torch

from kitlib.algos import register_adv_est
from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY
from kitlib.config import ConfigError, load_config, require_supported
from kitlib.config.checks import CHOICES, COUNTS, RANGES
from kitlib.config.schema import known_keys

MINI, MICRO = "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"

BROKEN = [
    (["data.train_batch_size=8"], [f"{MINI}=16", "data.train_batch_size=8", f"set {MINI}=8"]),
    (["data.gen_batch_size=5"], ["data.gen_batch_size=5", "data.train_batch_size=16", "divisor"]),
    (["trainer.n_gpus_per_node=3"], ["128 rows", "3 ranks", "trainer.n_gpus_per_node"]),
    ([f"{MICRO}=null"], [MICRO, "use_dynamic_bsz"]),
    (["trainer.v1.trainer_mode=async"], ["trainer.v1.trainer_mode=async", "colocate_async"]),
    (["trainer.v1.trainer_mode=separate_async"], [SYNC_STEP, "16 is not 4 * 16", "ppo_mini_batch_size=4, or data"]),
    (["trainer.v1.trainer_mode=separate_async", f"{SYNC_STEP}=0"], [f"{SYNC_STEP}=0"]),
    (["algorithm.adv_estimator=gpro"], ["algorithm.adv_estimator=gpro", "did you mean grpo?"]),
    (["actor_rollout_ref.actor.policy_loss.loss_mode=vanila"], ["did you mean vanilla?"]),
    (["trainer.logger=[console,tensorbord]"], ["trainer.logger names 'tensorbord'", "did you mean tensorboard?"]),
    (["data.max_prompt_length=0"], ["data.max_prompt_length=0", "at least 1"]),
    (["data.max_response_length=-1"], ["data.max_response_length=-1", "at least 1"]),
    (["actor_rollout_ref.rollout.response_length=0"], ["rollout.response_length=0", "at least 1"]),
    (["actor_rollout_ref.rollout.temperature=0"], ["actor_rollout_ref.rollout.temperature=0", "val_kwargs"]),
    (["actor_rollout_ref.rollout.max_model_len=48"], ["max_model_len=48", "prompt_length=48"]),
    (["actor_rollout_ref.rollout.val_kwargs.do_sample=true"], ["do_sample=true", "temperature"]),
    (["trainer.resume_mode=resume_path"], ["trainer.resume_from_path"]),
    (["actor_rollout_ref.actor.checkpoint.load_contents=[modle]"], ["load_contents names 'modle'", "mean model?"]),
    (["trainer.max_actor_ckpt_to_keep=0"], ["trainer.max_actor_ckpt_to_keep=0", "at least 1"]),
    (["algorithm.adv_estimator=gae", "critic.ppo_mini_batch_size=64"], ["critic.ppo_mini_batch_size=64"]),
]

FINE = [
    [MINI + "=6"],  # not a divisor of 16: padding rows fill the last mini-batch, as in verl
    ["data.train_batch_size=8", "actor_rollout_ref.actor.use_dynamic_bsz=true"],
    ["data.gen_batch_size=4"],
    ["trainer.n_gpus_per_node=3", "data.train_batch_size=18"],
    [MICRO + "=null", "actor_rollout_ref.actor.use_dynamic_bsz=true"],
    ["trainer.v1.trainer_mode=separate_async", MINI + "=4"],
    ["critic.ppo_mini_batch_size=64"],  # no critic with grpo
    ["trainer.total_training_steps=null"],
    ["trainer.logger=console"],
    ["trainer.v1.sampler.max_off_policy_threshold=null"],
    ["actor_rollout_ref.rollout.val_kwargs.do_sample=true", "actor_rollout_ref.rollout.val_kwargs.temperature=1"],
]


@pytest.mark.parametrize(("words", "told"), BROKEN)
def test_a_broken_rule_names_the_settings_and_the_way_out(words: list[str], told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(words)
    message = str(caught.value)
    assert "\n" not in message
    for text in told:
        assert text in message


@pytest.mark.parametrize("words", FINE)
def test_what_verl_allows_is_allowed(words: list[str]) -> None:
    load_config(words)


def test_several_broken_rules_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["data.max_prompt_length=0", "trainer.resume_mode=never"])
    assert len(str(caught.value).splitlines()) == 2


def test_rules_name_settings_that_exist() -> None:
    assert {*CHOICES, *COUNTS, *(key for key, _, _ in RANGES)} <= set(known_keys())


def test_an_estimator_that_a_reader_registered_is_known() -> None:
    @register_adv_est("mine")
    def mine(token_level_rewards: torch.Tensor, response_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return token_level_rewards, token_level_rewards

    try:
        require_supported(load_config(["algorithm.adv_estimator=mine"]))
    finally:
        del ADV_ESTIMATOR_REGISTRY["mine"]
