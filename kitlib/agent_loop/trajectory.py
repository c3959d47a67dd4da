"""From the outputs of a session to rows of the queue: keys, fields and tags.

verl 0.9.1: trainer/ppo/v1/agent_loop_tq.py, AgentLoopWorkerTQ._agent_loop_postprocess.

    key      {uid}_{session_id}_{index}, index counting the outputs of the session
    fields   AgentLoopOutput.as_dict(), the dataset row, and loss_mask, input_ids, position_ids, multi_modal_inputs
    tag      status "success", lengths, the step of the prompt, and the weight versions that wrote the tokens

Differs from verl: the lengths of an output are compared before it is stored (the queue never does), and an output
without a response is refused: it has no token that could carry a reward. Left out: M-RoPE positions, multi-modal
inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kitlib.agent_loop.errors import BadOutputError
from kitlib.agent_loop.output import AgentLoopOutput
from kitlib.keys import TrajectoryKey


def trajectory_keys(outputs: Sequence[AgentLoopOutput], row: Mapping[str, Any]) -> list[str]:
    """One key an output."""
    return [str(TrajectoryKey(row["uid"], row["session_id"], index)) for index in range(len(outputs))]


def share_final_reward(outputs: Sequence[AgentLoopOutput]) -> None:
    """Give every output of a session the score of the last one: the session is judged by how it ends."""
    final = outputs[-1]
    if final.reward_score is None:
        return
    for output in outputs[:-1]:
        output.reward_score = final.reward_score
        output.extra_fields["reward_extra_info"] = final.extra_fields.get("reward_extra_info", {})


def check_output(output: AgentLoopOutput, key: str) -> None:
    """Raise BadOutputError naming `key` unless there is a response, with one mask and log-prob for each token of it."""
    num_tokens = len(output.response_ids)
    if not output.prompt_ids or not num_tokens:
        raise BadOutputError(
            f"{key}: {len(output.prompt_ids)} prompt and {num_tokens} response tokens; a trajectory needs one of each"
        )
    for name in ("response_mask", "response_logprobs"):
        values = getattr(output, name)
        if values is not None and len(values) != num_tokens:
            raise BadOutputError(f"{key}: {name} has {len(values)} entries for {num_tokens} response_ids")


def trajectory_fields(output: AgentLoopOutput, row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of one trajectory; columns of the dataset row win over fields of the same name, as in verl."""
    fields = output.as_dict()
    fields.update(row)
    fields["loss_mask"] = fields["response_mask"]
    fields["input_ids"] = torch.cat([fields["prompts"], fields["responses"]])  # [S]
    fields["position_ids"] = torch.arange(len(fields["input_ids"]))  # [S]
    fields["multi_modal_inputs"] = {}
    return fields


def trajectory_tag(output: AgentLoopOutput, row: Mapping[str, Any]) -> dict[str, Any]:
    """What the sampler, the balancing and the staleness control want to know without reading the fields."""
    prompt_len, response_len = len(output.prompt_ids), len(output.response_ids)
    return {
        "status": "success",
        "prompt_len": prompt_len,
        "response_len": response_len,
        "seq_len": prompt_len + response_len,
        "global_steps": row["global_steps"],
        "min_global_steps": output.extra_fields.get("min_global_steps"),
        "max_global_steps": output.extra_fields.get("max_global_steps"),
    }
