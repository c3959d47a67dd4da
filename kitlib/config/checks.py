"""Rules that settings must keep, alone and together. Each broken rule gives one sentence with the way out.

verl 0.9.1: utils/config.py (validate_config), workers/config/*.py (__post_init__, validate), and in trainer/ppo/v1
trainer_base.py (_next_train_batch) and trainer_separate_async.py (__init__), where most of these are assertions spread
over the start-up. Left out: rules about Megatron, sequence parallelism and GPUs of the rollout pool.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kitlib.config.errors import ConfigError

Values = Mapping[str, Any]  # {dotted name: value}
Rule = Callable[[Values], Iterator[str]]

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

# Names that verl registers; `kitlib.algos` may have fewer, and more once a reader has registered one.
ADV_ESTIMATORS = (
    *("gae", "grpo", "grpo_vectorized", "grpo_passk", "gdpo", "gpg", "opo", "remax", "rloo", "rloo_vectorized"),
    *("reinforce_plus_plus", "reinforce_plus_plus_baseline", "optimal_token_baseline", "tir_optimal_token_baseline"),
)
POLICY_LOSSES = (
    *(
        "vanilla",
        "dppo_tv",
        "dppo_kl",
        "gspo",
        "sapo",
        "gpg",
        "clip_cov",
        "kl_cov",
        "geo_mean",
        "dro",
        "cispo",
        "bypass_mode",
    ),
)
LOGGERS = ("console", "jsonl", "tensorboard", "wandb")  # trainer/tracking.py makes them
CHECKPOINT_CONTENTS = ("model", "optimizer", "extra", "hf_model")
_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")  # verl also lists "full", which it never implemented
_AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

CHOICES: dict[str, tuple[Any, ...]] = {
    "algorithm.kl_penalty": (*_KL, *(f"{name}+" for name in _KL)),
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "algorithm.rollout_correction.rollout_is": (None, "token", "sequence"),
    "algorithm.pf_ppo.reweight_method": ("pow", "max_min", "max_random"),
    f"{ACTOR}.strategy": ("fsdp", "fsdp2"),
    f"{ACTOR}.loss_agg_mode": _AGGREGATIONS,
    f"{ACTOR}.kl_loss_type": (*_KL, *(f"{name}+" for name in _KL)),
    f"{ACTOR}.optim.lr_scheduler_type": ("constant", "cosine"),
    f"{ROLLOUT}.multi_turn.tool_response_truncate_side": ("left", "right", "middle"),
    "critic.strategy": ("fsdp", "fsdp2"),
    "critic.loss_agg_mode": _AGGREGATIONS,
    "critic.optim.lr_scheduler_type": ("constant", "cosine"),
    "trainer.v1.trainer_mode": ("sync", "colocate_async", "separate_async"),
    "trainer.v1.sampler.max_off_policy_strategy": ("drop", "wait"),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "trainer.device": ("auto", "cpu", "cuda"),
    "data.truncation": ("error", "left", "right", "middle"),
    "kitlib.runtime": ("local", "ray"),
}

# At least 1 (null where null is allowed).
COUNTS = (
    f"{ACTOR}.ppo_mini_batch_size",
    f"{ACTOR}.ppo_epochs",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{ROLLOUT}.n",
    f"{ROLLOUT}.max_num_seqs",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{ROLLOUT}.val_kwargs.n",
    f"{ROLLOUT}.agent.num_workers",
    f"{ROLLOUT}.multi_turn.max_assistant_turns",
    f"{ROLLOUT}.multi_turn.max_user_turns",
    f"{ROLLOUT}.multi_turn.max_parallel_calls",
    "critic.ppo_mini_batch_size",
    "critic.ppo_epochs",
    "critic.ppo_micro_batch_size_per_gpu",
    "data.train_batch_size",
    "data.gen_batch_size",
    "data.val_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "trainer.v1.sampler.max_off_policy_threshold",
    "trainer.v1.separate_async.parameter_sync_step",
    "algorithm.filter_groups.max_inflight_gen_batches",
    "reward.num_workers",
    "transfer_queue.backend.SimpleStorage.total_storage_size",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    "kitlib.num_threads",
)

# A setting, the test it must pass, and that test in words.
RANGES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        f"{ROLLOUT}.temperature",
        lambda x: x > 0,
        "above 0: every log-prob is divided by it (greedy belongs to val_kwargs)",
    ),
    (f"{ROLLOUT}.top_p", lambda x: 0 < x <= 1, "above 0 and at most 1"),
    (f"{ROLLOUT}.top_k", lambda x: x == -1 or x > 0, "-1 (all tokens) or at least 1"),
    (f"{ROLLOUT}.val_kwargs.temperature", lambda x: x >= 0, "at least 0"),
    (f"{ROLLOUT}.val_kwargs.top_p", lambda x: 0 < x <= 1, "above 0 and at most 1"),
    (f"{ROLLOUT}.val_kwargs.top_k", lambda x: x == -1 or x > 0, "-1 (all tokens) or at least 1"),
    ("actor_rollout_ref.model.lora_rank", lambda x: x >= 0, "at least 0 (0: no adapter)"),
    (f"{ACTOR}.optim.lr", lambda x: x >= 0, "at least 0"),
    (f"{ACTOR}.optim.clip_grad", lambda x: x > 0, "above 0"),
    (f"{ACTOR}.clip_ratio_low", lambda x: 0 <= x < 1, "at least 0 and below 1"),
    (f"{ACTOR}.clip_ratio_high", lambda x: x >= 0, "at least 0"),
    (f"{ACTOR}.clip_ratio_c", lambda x: x > 1, "above 1"),
    ("trainer.v1.colocate_async.num_warmup_batches", lambda x: x >= 0, "at least 0"),
    ("trainer.v1.separate_async.num_warmup_batches", lambda x: x >= 0, "at least 0"),
    ("data.dataloader_num_workers", lambda x: x >= 0, "at least 0"),
    ("kitlib.reward_timeout", lambda x: x is None or x > 0, "null or above 0 seconds"),
    ("kitlib.reward_error_score", lambda x: x is None or math.isfinite(x), "null or a finite number"),
)


def require_consistent(values: Values) -> None:
    """Raise one ConfigError with a line for every rule that `values` break."""
    broken = [sentence for rule in RULES for sentence in rule(values)]
    if broken:
        raise ConfigError("\n".join(broken))


def uses_critic(values: Values) -> bool:
    """verl: trainer/ppo/utils.py, need_critic."""
    enabled = values["critic.enable"]
    return bool(enabled) if enabled is not None else values["algorithm.adv_estimator"] == "gae"


def fetches_single_prompts(values: Values) -> str | None:
    """Why data.gen_batch_size must be 1, if it must: groups are then replaced one by one. verl: trainer_base.py:727."""
    if values["trainer.v1.trainer_mode"] != "sync":
        return f"trainer.v1.trainer_mode={values['trainer.v1.trainer_mode']}"
    for key in ("algorithm.filter_groups.enable", "trainer.v1.sampler.sync_refill_failed_groups"):
        if values[key]:
            return f"{key}=true"
    return None


def _choices(values: Values) -> Iterator[str]:
    for key, allowed in CHOICES.items():
        if values[key] not in allowed:
            shown = ", ".join("null" if name is None else str(name) for name in allowed)
            yield f"{key}={values[key]}: expected one of {shown}{_did_you_mean(values[key], allowed)}"


def names_of_loggers(logger: str | Iterable[str]) -> list[str]:
    """`trainer.logger`: a list, or one name, as in verl."""
    return [logger] if isinstance(logger, str) else list(logger)


def _loggers(values: Values) -> Iterator[str]:
    for name in names_of_loggers(values["trainer.logger"]):
        if name not in LOGGERS:
            yield f"trainer.logger names {name!r}: expected {', '.join(LOGGERS)}{_did_you_mean(name, LOGGERS)}"


def _registered(values: Values) -> Iterator[str]:
    for key, names, get in (
        ("algorithm.adv_estimator", ADV_ESTIMATORS, "get_adv_estimator_fn"),
        (f"{ACTOR}.policy_loss.loss_mode", POLICY_LOSSES, "get_policy_loss_fn"),
    ):
        if values[key] not in names and not _in_registry(get, values[key]):
            near = _did_you_mean(values[key], names)
            yield f"{key}={values[key]} is unknown: expected one of {', '.join(names)}{near}"


def _in_registry(get: str, name: str) -> bool:
    """True for a function that a reader has registered; nobody has if kitlib.algos was not imported."""
    algos = sys.modules.get("kitlib.algos")
    if algos is None:
        return False
    try:
        return callable(getattr(algos, get)(name))
    except ValueError:
        return False


def _did_you_mean(value: Any, allowed: tuple[Any, ...]) -> str:
    near = difflib.get_close_matches(str(value), [str(name) for name in allowed], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _counts(values: Values) -> Iterator[str]:
    for key in COUNTS:
        if values[key] is not None and values[key] < 1:
            yield f"{key}={values[key]}: expected at least 1"


def _ranges(values: Values) -> Iterator[str]:
    for key, holds, expected in RANGES:
        if not holds(values[key]):
            yield f"{key}={values[key]}: expected {expected}"


def _mini_batches(values: Values) -> Iterator[str]:
    """A batch that is no multiple of the mini-batch is legal: padding rows fill it up."""
    train = values["data.train_batch_size"]
    for room in (ACTOR, "critic") if uses_critic(values) else (ACTOR,):
        mini, dynamic = values[f"{room}.ppo_mini_batch_size"], values[f"{room}.use_dynamic_bsz"]
        if not dynamic and mini > train:
            yield (
                f"{room}.ppo_mini_batch_size={mini} is larger than data.train_batch_size={train} (both count prompts): "
                f"set {room}.ppo_mini_batch_size={train} or less"
            )


def _micro_batches(values: Values) -> Iterator[str]:
    needed = [(f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.use_dynamic_bsz")]
    needed += [(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_use_dynamic_bsz")]
    if uses_critic(values):
        needed += [("critic.ppo_micro_batch_size_per_gpu", "critic.use_dynamic_bsz")]
    for key, dynamic in needed:
        if values[key] is None and not values[dynamic]:
            yield f"{key} is null and {dynamic} is false: set one of them, to cut micro-batches by rows or by tokens"


def _ranks(values: Values) -> Iterator[str]:
    ranks = values["trainer.n_gpus_per_node"] * values["trainer.nnodes"]
    rows = values["data.train_batch_size"] * values[f"{ROLLOUT}.n"]
    if ranks > 0 and rows % ranks and not values[f"{ACTOR}.use_dynamic_bsz"]:
        yield (
            f"data.train_batch_size * {ROLLOUT}.n = {rows} rows do not divide among "
            f"trainer.n_gpus_per_node * trainer.nnodes = {ranks} ranks: change one of the four"
        )


def _gen_batches(values: Values) -> Iterator[str]:
    train, fetch = values["data.train_batch_size"], values["data.gen_batch_size"]
    if fetch and fetch > 0 and train % fetch:
        yield (
            f"data.gen_batch_size={fetch} does not divide data.train_batch_size={train}: a step submits whole fetches, "
            f"so choose a divisor of {train}, or null"
        )


def _separate_async(values: Values) -> Iterator[str]:
    if values["trainer.v1.trainer_mode"] != "separate_async":
        return
    train, mini = values["data.train_batch_size"], values[f"{ACTOR}.ppo_mini_batch_size"]
    inner = values["trainer.v1.separate_async.parameter_sync_step"]
    if inner > 0 and mini > 0 and train != inner * mini:
        yield (
            f"separate_async needs data.train_batch_size = trainer.v1.separate_async.parameter_sync_step * "
            f"{ACTOR}.ppo_mini_batch_size, but {train} is not {inner} * {mini}: set "
            + (f"{ACTOR}.ppo_mini_batch_size={train // inner}, or " if train % inner == 0 else "")
            + f"data.train_batch_size={inner * mini}"
        )


def _lengths(values: Values) -> Iterator[str]:
    for key, source in (("prompt_length", "data.max_prompt_length"), ("response_length", "data.max_response_length")):
        length = values[f"{ROLLOUT}.{key}"]
        if length < 1 and length != values[source]:  # where it follows the source, the source is told
            yield f"{ROLLOUT}.{key}={length}: expected at least 1"
    limit, prompt = values[f"{ROLLOUT}.max_model_len"], values[f"{ROLLOUT}.prompt_length"]
    if limit is not None and limit <= prompt:
        yield f"{ROLLOUT}.max_model_len={limit} leaves no room for a response after {ROLLOUT}.prompt_length={prompt}"


def _sampled_validation(values: Values) -> Iterator[str]:
    if values[f"{ROLLOUT}.val_kwargs.do_sample"] and values[f"{ROLLOUT}.val_kwargs.temperature"] == 0:
        yield f"{ROLLOUT}.val_kwargs.do_sample=true with temperature=0 is greedy: raise the temperature or unset it"


def _resume(values: Values) -> Iterator[str]:
    if values["trainer.resume_mode"] == "resume_path" and not values["trainer.resume_from_path"]:
        yield "trainer.resume_mode=resume_path needs trainer.resume_from_path, a folder .../global_step_<N>"


def _reward_model(values: Values) -> Iterator[str]:
    if not values["reward.reward_model.enable"]:
        return
    on = "reward.reward_model.enable=true"
    if not values["reward.reward_model.model_path"]:
        yield f"{on} needs reward.reward_model.model_path, a sequence classifier with one label"
    if values["reward.custom_reward_function.path"]:
        yield f"{on} scores instead of reward.custom_reward_function.path: unset one of them"
    if values["reward.reward_model.enable_resource_pool"]:
        return
    own_pool = "set reward.reward_model.enable_resource_pool=true to score while sessions end"
    if values["algorithm.filter_groups.enable"]:
        yield f"{on} scores after sampling, too late for algorithm.filter_groups.enable: {own_pool}"
    if values["trainer.v1.trainer_mode"] == "separate_async":
        yield f"{on} would share devices with a trainer that never pauses (separate_async): {own_pool}"


def _critic_warmup(values: Values) -> Iterator[str]:
    steps = values["trainer.critic_warmup"]
    if steps > 0 and not uses_critic(values):
        yield (
            f"trainer.critic_warmup={steps} trains the critic alone, and there is none: set critic.enable=true (or "
            "algorithm.adv_estimator=gae), or trainer.critic_warmup=0"
        )


def _checkpoint_contents(values: Values) -> Iterator[str]:
    names = ("save_contents", "load_contents")
    for key in (f"{room}.checkpoint.{name}" for room in (ACTOR, "critic") for name in names):
        for content in values[key]:
            if content not in CHECKPOINT_CONTENTS:
                near = _did_you_mean(content, CHECKPOINT_CONTENTS)
                yield f"{key} names {content!r}: expected some of {', '.join(CHECKPOINT_CONTENTS)}{near}"


RULES: tuple[Rule, ...] = (
    _choices,
    _loggers,
    _registered,
    _counts,
    _ranges,
    _mini_batches,
    _micro_batches,
    _ranks,
    _gen_batches,
    _separate_async,
    _lengths,
    _sampled_validation,
    _resume,
    _checkpoint_contents,
    _critic_warmup,
    _reward_model,
)
