"""No setting is silently ignored: kitlib reads it, or a run refuses every value but its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import kitlib
from kitlib.algos import AlgoError
from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY
from kitlib.config import ConfigError, load_config, require_supported
from kitlib.config.schema import known_keys
from kitlib.config.support import SUPPORTED

# Settings that begin so mean something only with this switch. While a run refuses the switch they need not be read.
ONLY_WITH = {
    "algorithm.rollout_correction.rollout_is": "algorithm.rollout_correction.rollout_is",
    "algorithm.rollout_correction.rollout_rs": "algorithm.rollout_correction.rollout_rs",
    "algorithm.filter_groups": "algorithm.filter_groups.enable",
    "algorithm.pf_ppo": "algorithm.use_pf_ppo",
    "actor_rollout_ref.model.lora_alpha": "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.model.target_modules": "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.enforce_eager": "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.free_cache_engine": "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.engine_kwargs.vllm": "actor_rollout_ref.rollout.name",
    "critic": "critic.enable",
    "reward.reward_model": "reward.reward_model.enable",
    "reward.sandbox_fusion": "reward.sandbox_fusion.url",
    "trainer.v1.colocate_async": "trainer.v1.trainer_mode",
    "trainer.v1.separate_async": "trainer.v1.trainer_mode",
    "trainer.v1.sampler.max_off_policy": "trainer.v1.trainer_mode",
    "trainer.v1.sampler.sampler_kwargs": "trainer.v1.sampler.custom_sampler.path",
    "trainer.max_critic_ckpt_to_keep": "critic.enable",
    "ray_kwargs": "kitlib.runtime",
}
# Read by the loss functions of the registry; vanilla, the only one so far, needs none of them.
OF_LOSSES = ("actor_rollout_ref.actor.policy_loss.", "actor_rollout_ref.actor.tau_")
NOT_IN_SOURCE = {
    "kitlib.data_dir",  # other settings follow it
    "actor_rollout_ref.actor.grad_clip",  # optim.clip_grad follows it
    "critic.grad_clip",  # the same
    "actor_rollout_ref.rollout.multi_turn.enable",  # as in verl, read by nobody
    "algorithm.filter_groups.max_num_gen_batches",  # the same
    "trainer.project_name",  # labels, kept in the settings of the run folder
    "trainer.experiment_name",
    "data.train_max_samples",  # read as data.{split}_max_samples
    "data.val_max_samples",
}


def names_in_source() -> set[str]:
    """Every word of kitlib's code outside the rooms that only list settings."""
    package = Path(kitlib.__file__).parent
    files = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ("config", "contract")]
    return {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def test_every_setting_is_read_or_refused() -> None:
    words = names_in_source()
    refused = tuple(prefix for prefix, switch in ONLY_WITH.items() if switch in SUPPORTED)
    ignored = [
        key
        for key in known_keys()
        if key.rsplit(".", 1)[-1] not in words
        and key not in SUPPORTED
        and key not in NOT_IN_SOURCE
        and not key.startswith((*refused, *OF_LOSSES))
    ]
    assert ignored == []


def test_the_tables_name_settings_that_exist() -> None:
    assert {*ONLY_WITH.values(), *SUPPORTED} <= set(known_keys())


def test_the_defaults_are_supported() -> None:
    require_supported(load_config())


def test_a_setting_that_would_be_ignored_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        require_supported(load_config(["trainer.log_val_generations=5", "kitlib.runtime=ray"]))
    first, second = str(caught.value).splitlines()
    assert "trainer.log_val_generations=5 is not supported by this version: set trainer.log_val_generations=0" in first
    assert "kitlib.runtime=ray is not supported by this version: set kitlib.runtime=local" in second


def test_a_missing_gpu_is_told_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="trainer.device=cuda, but torch finds no GPU"):
        require_supported(load_config(["trainer.device=cuda"]))


def test_fused_kernels_are_refused_without_a_gpu_or_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = load_config(["actor_rollout_ref.model.use_fused_kernels=true", "trainer.device=cuda"])
    for has_gpu, has_library, told in ((False, True, "needs a GPU"), (True, False, "pip install liger-kernel")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        monkeypatch.setattr("importlib.util.find_spec", lambda name, found=has_library: found or None)
        with pytest.raises(ConfigError, match=told):
            require_supported(asked)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    require_supported(asked)


def test_an_update_is_recorded_where_there_is_a_queue() -> None:
    with pytest.raises(ConfigError, match="record_update=true writes to the queue, and trainer.use_v1=false has none"):
        require_supported(load_config(["kitlib.record_update=true", "trainer.use_v1=false"]))


def test_an_estimator_that_nobody_registered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ADV_ESTIMATOR_REGISTRY, "opo", raising=False)
    with pytest.raises(AlgoError, match="opo"):
        require_supported(load_config(["algorithm.adv_estimator=opo"]))
