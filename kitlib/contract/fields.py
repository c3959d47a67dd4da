"""Every field and tag that the V1 trainer keeps in the queue.

Read from verl 0.9.1: experimental/agent_loop/agent_loop.py (AgentLoopOutput.as_dict), trainer/ppo/v1/agent_loop_tq.py
and trainer/ppo/v1/trainer_base.py. Lengths of one row: P prompt tokens, R response tokens, S = P + R.

A field has one row per key. `layout` says how a read hands the column back: "jagged" (a nested tensor, one row length
a key), "scalar" (a dense vector, one number a key) or "object" (one Python object a key).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal["jagged", "scalar", "object"]

# Where a field is first written; the order is the order of the pipeline, and of columns in the presence view.
GROUPS = ("dataset", "agent loop", "reward", "old log-prob", "reference", "values", "advantage", "update", "padding")


@dataclass(frozen=True)
class Field:
    """One column of the queue: what a row of it holds."""

    name: str
    dtype: str
    shape: str  # of one row, in P, R and S
    layout: Layout
    group: str  # one of GROUPS: who writes it first
    meaning: str


@dataclass(frozen=True)
class Tag:
    """One entry of the small dict that lives with a key in the controller, not in the storage units."""

    name: str
    type: str
    on: Literal["marker", "row", "padding"]
    meaning: str


def _tensor(name: str, dtype: str, shape: str, group: str, meaning: str) -> Field:
    return Field(name, dtype, shape, "jagged", group, meaning)


def _object(name: str, type_name: str, group: str, meaning: str) -> Field:
    return Field(name, type_name, "", "object", group, meaning)


def _scalar(name: str, dtype: str, group: str, meaning: str) -> Field:
    return Field(name, dtype, "()", "scalar", group, meaning)


_ALL_FIELDS = (
    # The dataset row; the agent loop copies it onto every trajectory, the async modes also onto the prompt marker.
    _object("uid", "str", "dataset", "group of the row; the advantage stage groups by it"),
    _object("prompt", "list[dict]", "dataset", "the dataset's own column of chat messages"),
    _object("raw_prompt", "list[dict]", "dataset", "the same messages under the name that the agent loop reads"),
    _object("data_source", "str", "dataset", "name of the task; picks the reward rule and names the validation metric"),
    _object("ability", "str", "dataset", "a dataset column: kind of skill"),
    _object("agent_name", "str", "dataset", "which agent loop runs the prompt; not copied onto its trajectories"),
    _object("reward_model", "dict", "dataset", "style and ground_truth for the reward rule"),
    _object("extra_info", "dict", "dataset", "split, index and whatever the dataset adds"),
    _object("index", "int", "dataset", "row number in the dataset"),
    _object("tools_kwargs", "dict", "dataset", "arguments for the tools of this row"),
    _object("interaction_kwargs", "dict", "dataset", "arguments for a simulated user"),
    _tensor("dummy_tensor", "uint8", "(1,)", "dataset", "gives a row of pure objects one tensor"),
    # The agent loop.
    _object("session_id", "int", "agent loop", "which of the n samples of the prompt"),
    _object("global_steps", "int", "agent loop", "trainer step at which the prompt was submitted"),
    _tensor("prompts", "int64", "(P,)", "agent loop", "prompt token ids"),
    _tensor("responses", "int64", "(R,)", "agent loop", "token ids after the prompt: the model's and the tools'"),
    _tensor("response_mask", "int64", "(R,)", "agent loop", "1 where the model wrote the token, 0 where a tool did"),
    _tensor("loss_mask", "int64", "(R,)", "agent loop", "a copy of response_mask made at rollout, never rewritten"),
    _tensor("input_ids", "int64", "(S,)", "agent loop", "prompts and responses joined"),
    _tensor("position_ids", "int64", "(S,) or (4, S)", "agent loop", "0 .. S-1; four rows with M-RoPE"),
    _tensor("rollout_log_probs", "float32", "(R,)", "agent loop", "log-prob of each token as the server sampled it"),
    _tensor("routed_experts", "int16", "(S, layers, top_k)", "agent loop", "experts chosen, for routing replay"),
    _object("num_turns", "int", "agent loop", "chat turns: user, assistant and tool"),
    _object("metrics", "dict", "agent loop", "timings of the session"),
    _object("extra_fields", "dict", "agent loop", "turn scores, tool rewards, reward_extra_info, weight versions"),
    _object("multi_modal_inputs", "dict", "agent loop", "{} for text"),
    _object("mm_processor_kwargs", "dict", "agent loop", "set by loops that use a multi-modal processor"),
    _object("mm_processor_output", "list", "agent loop", "set by loops that use a multi-modal processor"),
    _tensor("teacher_ids", "int64", "(S, top_k)", "agent loop", "tokens the teacher scored, for distillation"),
    _tensor("teacher_logprobs", "float32", "(S, top_k)", "agent loop", "the teacher's log-probs of teacher_ids"),
    _tensor("rm_scores", "float32", "(R,)", "reward", "the reward on the last response token, 0 elsewhere"),
    _scalar("reward_baselines", "float32", "reward", "reward of the greedy answer to the same prompt (remax)"),
    # The trainer.
    _tensor(
        "log_probs", "float32", "(S,)", "old log-prob", "value at t scores token t+1; the last entry means nothing"
    ),
    _tensor("entropy", "float32", "(S,), then (R,)", "old log-prob", "per token; the trainer cuts it to the response"),
    _tensor("sum_pi_squared", "float32", "(S,), then (R,)", "old log-prob", "sum of squared probabilities, per token"),
    _tensor("old_log_probs", "float32", "(R,)", "old log-prob", "log-probs under the policy before this update"),
    _tensor("ref_log_prob", "float32", "(R,)", "reference", "log-probs under the frozen reference policy"),
    _tensor("values", "float32", "(S,), then (R,)", "values", "the critic's value per token, cut to the response"),
    _tensor("advantages", "float32", "(R,)", "advantage", "how much better than expected, per token"),
    _tensor("returns", "float32", "(R,)", "advantage", "the critic's target; equal to advantages with GRPO"),
    _tensor("token_level_rewards", "float32", "(R,)", "advantage", "rm_scores minus beta times KL"),
    _tensor("rollout_is_weights", "float32", "(R,)", "advantage", "importance weights, trainer against rollout"),
    _tensor("update_log_probs", "float32", "(R,)", "update", "log-probs of the policy as its update last saw the row"),
    _tensor("loss_share", "float32", "(R,)", "update", "share of the update's pull on log-probs; 0: clipped or masked"),
    _tensor("attention_mask", "int64", "(128,)", "padding", "ones; only padding rows have it"),
)

_ALL_TAGS = (
    Tag("is_prompt", "bool", "marker", "True: this key is a prompt marker"),
    Tag("status", "str", "marker", "pending, running, then finished or failure; `success` on a row"),
    Tag("num_sessions", "int", "marker", "sessions of the prompt; a group with fewer rows lost some"),
    Tag("global_steps", "int", "marker", "trainer step that submitted the prompt; the sampler takes the oldest first"),
    Tag("prompt_len", "int", "row", "P"),
    Tag("response_len", "int", "row", "R"),
    Tag("seq_len", "int", "row", "S; balancing reads it"),
    Tag("min_global_steps", "int", "row", "oldest weight version that wrote a token of the row"),
    Tag("max_global_steps", "int", "row", "newest weight version that wrote a token of the row"),
    Tag("is_padding", "bool", "padding", "True: added so that the batch divides; no real row has this tag"),
)

FIELDS: dict[str, Field] = {field.name: field for field in _ALL_FIELDS}
TAGS: dict[str, Tag] = {tag.name: tag for tag in _ALL_TAGS}
