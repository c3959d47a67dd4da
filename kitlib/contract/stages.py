"""Every stage of the V1 trainer: what it reads, what it writes, what switches it.

Read from verl 0.9.1, mostly trainer/ppo/v1/trainer_base.py (TB), agent_loop_tq.py (AL) and replay_buffer.py (RB) in
the same folder. A stage carries the name of the trainer method; verl writes it with a leading underscore."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kitlib.contract.switches import (
    ALWAYS,
    ASYNC,
    BYPASS,
    CHECKPOINTS,
    CRITIC,
    DISTILLATION,
    DUMP_ROLLOUTS,
    FILTER_BY_OTHER,
    FILTER_BY_REWARD,
    GREEDY_BASELINE,
    IMPORTANCE_WEIGHTS,
    KL_IN_REWARD,
    KL_LOSS,
    PF_PPO,
    RECORD_UPDATE,
    REFERENCE,
    REWARD_MODEL_COLOCATED,
    REWARD_PARTS,
    ROLLOUT_CORRECTION,
    ROLLOUT_LOG_PROBS,
    TOKEN_BASELINE,
    VALIDATION,
    Condition,
)


@dataclass(frozen=True)
class Need:
    """A field that a stage reads or writes, `when` it does, and whether every row must have it.

    `required=False` marks a field that the stage takes if all rows have it and does without otherwise.
    """

    field: str
    when: Condition = ALWAYS
    required: bool = True
    note: str = ""


@dataclass(frozen=True)
class Stage:
    """One step of the call chain. `timer` is the name of its time in `timing_s/*`."""

    name: str
    title: str
    meaning: str
    called_by: str
    verl: str
    timer: str = ""
    reads: tuple[Need, ...] = ()
    writes: tuple[Need, ...] = ()
    tags_read: tuple[str, ...] = ()
    tags_written: tuple[str, ...] = ()
    runs_when: Condition = ALWAYS
    switches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Needs:
    """A stage's fields under one config: what every row must have, what is taken if present, what is written."""

    stage: str
    reads: tuple[str, ...]
    optional: tuple[str, ...]
    writes: tuple[str, ...]
    runs: bool = field(default=True)


def _all(*names: str, when: Condition = ALWAYS, required: bool = True, note: str = "") -> tuple[Need, ...]:
    return tuple(Need(name, when, required, note) for name in names)


_DATASET_ROW = ("uid", "raw_prompt", "data_source", "reward_model", "extra_info", "index", "tools_kwargs")
_DATASET_EXTRAS = ("prompt", "ability", "interaction_kwargs", "dummy_tensor")

_ALL_STAGES = (
    Stage(
        "submit_batch_to_rollout",
        "submit",
        "registers prompts as pending markers and hands them to the agent loop without waiting",
        "PPOTrainer.prepare_step",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._submit_batch_to_rollout (line 1496)",
        writes=_all(
            *_DATASET_ROW, *_DATASET_EXTRAS, "agent_name", when=ASYNC, required=False, note="on the marker, for restart"
        ),
        tags_written=("is_prompt", "status", "global_steps"),
        switches=("trainer.v1.trainer_mode", "data.train_batch_size", "data.gen_batch_size"),
    ),
    Stage(
        "generate_sequences",
        "agent loop",
        "runs n sessions a prompt against the LLM servers and stores every trajectory as one row",
        "PPOTrainer.submit_batch_to_rollout",
        "trainer/ppo/v1/agent_loop_tq.py, AgentLoopWorkerTQ.generate_sequences (line 59)",
        writes=(
            *_all(*_DATASET_ROW, "session_id", "global_steps"),
            *_all(*_DATASET_EXTRAS, required=False, note="as the dataset has them"),
            *_all("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids"),
            *_all("metrics", "extra_fields", "multi_modal_inputs"),
            *_all(
                "num_turns", "mm_processor_kwargs", "mm_processor_output", required=False, note="if the loop sets it"
            ),
            Need("rollout_log_probs", ROLLOUT_LOG_PROBS),
            Need("rm_scores", ~REWARD_MODEL_COLOCATED, note="scored in the loop (streaming reward)"),
            Need(
                "reward_baselines", GREEDY_BASELINE & ~REWARD_MODEL_COLOCATED, note="one greedy session more a prompt"
            ),
            Need("routed_experts", required=False, note="MoE routing replay"),
            *_all(
                "teacher_ids", "teacher_logprobs", when=DISTILLATION, required=False, note="last output of a session"
            ),
        ),
        tags_written=(
            "status",
            "num_sessions",
            "prompt_len",
            "response_len",
            "seq_len",
            "global_steps",
            "min_global_steps",
            "max_global_steps",
        ),
        switches=(
            "actor_rollout_ref.rollout.n",
            "actor_rollout_ref.rollout.temperature",
            "actor_rollout_ref.rollout.top_p",
            "actor_rollout_ref.rollout.top_k",
            "actor_rollout_ref.rollout.calculate_log_probs",
            "actor_rollout_ref.rollout.val_kwargs.n",
            "actor_rollout_ref.rollout.agent.default_agent_loop",
            "actor_rollout_ref.rollout.prompt_length",
            "actor_rollout_ref.rollout.response_length",
            "reward.reward_model.enable",
            "algorithm.adv_estimator",
            "distillation.enabled",
        ),
    ),
    Stage(
        "sample",
        "sample",
        "waits until enough groups are finished, takes the oldest, and removes their prompt markers",
        "PPOTrainer.step_once",
        "trainer/ppo/v1/replay_buffer.py, ReplayBuffer.sample (line 422)",
        timer="gen",
        reads=(
            Need("rm_scores", FILTER_BY_REWARD, note="of newly finished groups, to filter them"),
            Need("extra_fields", FILTER_BY_OTHER, note="reward_extra_info[metric], to filter groups"),
        ),
        tags_read=("is_prompt", "status", "global_steps"),
        switches=(
            "data.train_batch_size",
            "trainer.v1.trainer_mode",
            "trainer.v1.sampler.max_off_policy_threshold",
            "trainer.v1.sampler.max_off_policy_strategy",
            "trainer.v1.sampler.sync_refill_failed_groups",
            "trainer.v1.separate_async.parameter_sync_step",
            "trainer.v1.sampler.custom_sampler.path",
            "algorithm.filter_groups.enable",
            "algorithm.filter_groups.metric",
            "algorithm.filter_groups.max_inflight_gen_batches",
        ),
    ),
    Stage(
        "compute_reward_colocate",
        "reward model",
        "scores the batch with a reward model that shares the trainer's devices",
        "PPOTrainer.step_once, after sample",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_reward_colocate (line 1529)",
        timer="reward",
        reads=_all("prompts", "responses", "raw_prompt"),
        writes=_all("rm_scores"),
        runs_when=REWARD_MODEL_COLOCATED,
        switches=("reward.reward_model.enable", "reward.reward_model.enable_resource_pool"),
    ),
    Stage(
        "balance_batch",
        "balance",
        "adds padding rows until the batch divides, then reorders it so that each rank gets equal work",
        "PPOTrainer.step_once",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._balance_batch (line 1608)",
        reads=_all("prompts", "responses", "input_ids", "response_mask", required=False, note="row 0, if it pads"),
        tags_read=("seq_len",),
        tags_written=("is_padding", "prompt_len", "response_len", "seq_len"),
        switches=(
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            "critic.ppo_mini_batch_size",
            "actor_rollout_ref.rollout.n",
            "trainer.critic_warmup",
        ),
    ),
    Stage(
        "compute_old_log_prob",
        "old log-prob",
        "scores every token with the current policy: the anchor of the importance ratio",
        "PPOTrainer.step_once",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_old_log_prob (line 1634)",
        timer="old_log_prob",
        reads=(
            *_all("input_ids", "position_ids", "prompts", "responses", "response_mask", when=~BYPASS),
            Need(
                "rollout_log_probs",
                ROLLOUT_LOG_PROBS | BYPASS,
                note="compared with the trainer's; copied in bypass_mode",
            ),
        ),
        writes=(
            Need("old_log_probs"),
            *_all("log_probs", "entropy", when=~BYPASS),
            Need("sum_pi_squared", TOKEN_BASELINE & ~BYPASS),
        ),
        switches=(
            "algorithm.rollout_correction.bypass_mode",
            "actor_rollout_ref.rollout.calculate_log_probs",
            "actor_rollout_ref.rollout.temperature",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
            "actor_rollout_ref.actor.loss_agg_mode",
        ),
    ),
    Stage(
        "compute_ref_log_prob",
        "reference",
        "scores every token with the frozen reference policy",
        "PPOTrainer.step_once",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_ref_log_prob (line 1695)",
        timer="ref",
        reads=_all("input_ids", "position_ids", "prompts", "responses", "response_mask"),
        writes=_all("ref_log_prob", "log_probs"),
        runs_when=REFERENCE,
        switches=("actor_rollout_ref.actor.use_kl_loss", "algorithm.use_kl_in_reward"),
    ),
    Stage(
        "compute_values",
        "values",
        "the critic's value of every token",
        "PPOTrainer.step_once",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_values (line 1721)",
        timer="values",
        reads=_all("input_ids", "position_ids", "prompts", "responses", "response_mask"),
        writes=_all("values"),
        runs_when=CRITIC,
        switches=("critic.enable", "algorithm.adv_estimator"),
    ),
    Stage(
        "compute_advantage",
        "advantage",
        "turns rewards into one advantage per token, comparing the rows of a group",
        "PPOTrainer.step_once",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_advantage (line 1743)",
        timer="adv",
        reads=(
            *_all("uid", "response_mask", "rm_scores"),
            Need("old_log_probs", KL_IN_REWARD | ROLLOUT_CORRECTION | TOKEN_BASELINE),
            Need("rollout_log_probs", ROLLOUT_CORRECTION),
            Need("ref_log_prob", KL_IN_REWARD),
            Need("values", CRITIC),
            Need("reward_baselines", GREEDY_BASELINE),
            Need("sum_pi_squared", TOKEN_BASELINE),
            Need("extra_fields", REWARD_PARTS, note="reward_extra_info[name] of each of algorithm.gdpo_reward_keys"),
        ),
        writes=(
            *_all("advantages", "returns"),
            Need("token_level_rewards", KL_IN_REWARD),
            Need("response_mask", ROLLOUT_CORRECTION, note="rewritten; rejection sampling clears tokens"),
            Need("rollout_is_weights", IMPORTANCE_WEIGHTS),
        ),
        switches=(
            "algorithm.adv_estimator",
            "algorithm.norm_adv_by_std_in_grpo",
            "algorithm.gamma",
            "algorithm.lam",
            "algorithm.use_kl_in_reward",
            "algorithm.rollout_correction.rollout_is",
        ),
    ),
    Stage(
        "update_critic",
        "update critic",
        "mini-batches of the clipped value loss",
        "PPOTrainer.step_once",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._update_critic (line 1804)",
        timer="update_critic",
        reads=(
            *_all("input_ids", "position_ids", "loss_mask", "prompts", "responses"),
            *_all("values", "returns", "response_mask"),
            Need("rm_scores", PF_PPO, note="to draw the rows of the update"),
        ),
        runs_when=CRITIC,
        switches=(
            "critic.ppo_mini_batch_size",
            "critic.ppo_epochs",
            "critic.cliprange_value",
            "algorithm.use_pf_ppo",
        ),
    ),
    Stage(
        "update_actor",
        "update actor",
        "mini-batches of the clipped policy loss",
        "PPOTrainer.step_once",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._update_actor (line 1827)",
        timer="update_actor",
        reads=(
            *_all("input_ids", "position_ids", "loss_mask", "prompts", "responses", "response_mask"),
            *_all("old_log_probs", "advantages"),
            Need("ref_log_prob", KL_LOSS),
            Need("rollout_is_weights", IMPORTANCE_WEIGHTS),
            *_all("teacher_ids", "teacher_logprobs", when=DISTILLATION),
            Need("rm_scores", PF_PPO, note="to draw the rows of the update"),
        ),
        writes=_all("update_log_probs", "loss_share", when=RECORD_UPDATE, note="to look at; verl writes nothing"),
        switches=(
            "algorithm.use_pf_ppo",
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            "actor_rollout_ref.actor.ppo_epochs",
            "actor_rollout_ref.actor.clip_ratio_low",
            "actor_rollout_ref.actor.clip_ratio_high",
            "actor_rollout_ref.actor.clip_ratio_c",
            "actor_rollout_ref.actor.loss_agg_mode",
            "actor_rollout_ref.actor.policy_loss.loss_mode",
            "actor_rollout_ref.actor.use_kl_loss",
            "actor_rollout_ref.actor.entropy_coeff",
            "trainer.critic_warmup",
            "kitlib.record_update",
        ),
    ),
    Stage(
        "save_checkpoint",
        "checkpoint",
        "writes actor, critic, dataloader and, in the async modes, the queue",
        "PPOTrainer.fit",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._save_checkpoint (line 948)",
        timer="save_checkpoint",
        runs_when=CHECKPOINTS,
        switches=("trainer.save_freq", "trainer.default_local_dir", "actor_rollout_ref.actor.checkpoint.async_save"),
    ),
    Stage(
        "update_weights",
        "weight sync",
        "sends the actor's weights to every LLM server; the next trajectories carry the new version",
        "PPOTrainer.on_step_end",
        "checkpoint_engine/base.py, CheckpointEngineManager.update_weights",
        timer="update_weights",
        switches=("trainer.v1.trainer_mode", "trainer.v1.separate_async.parameter_sync_step"),
    ),
    Stage(
        "validate",
        "validate",
        "runs the validation prompts through the same path in the partition `val`",
        "PPOTrainer.fit",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._validate (line 1031)",
        timer="testing",
        reads=(
            *_all("prompts", "responses", "uid", "rm_scores", "reward_model", "data_source", "extra_fields"),
            Need("num_turns", required=False),
        ),
        tags_written=("is_prompt", "status", "global_steps"),
        runs_when=VALIDATION,
        switches=(
            "trainer.val_before_train",
            "trainer.val_only",
            "trainer.test_freq",
            "actor_rollout_ref.rollout.val_kwargs.n",
            "actor_rollout_ref.rollout.val_kwargs.temperature",
        ),
    ),
    Stage(
        "compute_metrics",
        "metrics",
        "numbers of the step, padding rows left out of the data metrics",
        "PPOTrainer.fit",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_metrics (line 1868)",
        reads=(
            *_all("prompts", "responses", "response_mask", "advantages", "returns", "rm_scores"),
            Need("values", CRITIC),
            Need("token_level_rewards", KL_IN_REWARD),
            Need("num_turns", required=False),
        ),
        tags_read=("is_padding", "min_global_steps", "max_global_steps"),
    ),
    Stage(
        "log_rollout_data",
        "dump",
        "writes prompts, responses and scores of the step as JSON lines",
        "PPOTrainer.fit",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer._log_rollout_data (line 1297)",
        timer="dump_rollout_generations",
        reads=_all("uid", "prompts", "responses", "rm_scores", "reward_model"),
        runs_when=DUMP_ROLLOUTS,
        switches=("trainer.rollout_data_dir",),
    ),
    Stage(
        "clear",
        "clear",
        "removes the step's rows, padding rows included, from the queue",
        "PPOTrainer.fit",
        "trainer/ppo/v1/trainer_base.py, PPOTrainer.fit (line 511)",
    ),
)

STAGES: dict[str, Stage] = {stage.name: stage for stage in _ALL_STAGES}


def needs(stage_name: str, config: Any = None) -> Needs:
    """The fields that a stage reads and writes under `config` (None: verl's defaults).

    Raises KeyError with the known names for an unknown stage.
    """
    if stage_name not in STAGES:
        raise KeyError(f"no stage {stage_name!r}; the stages are {', '.join(STAGES)}")
    spec = STAGES[stage_name]
    active = [need for need in spec.reads if need.when.holds(config)]
    return Needs(
        stage=stage_name,
        reads=tuple(need.field for need in active if need.required),
        optional=tuple(need.field for need in active if not need.required),
        writes=tuple(need.field for need in spec.writes if need.required and need.when.holds(config)),
        runs=spec.runs_when.holds(config),
    )
