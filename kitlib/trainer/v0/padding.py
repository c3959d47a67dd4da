"""Between the padded columns of the serial pipeline and the ragged ones that workers take.

verl 0.9.1: workers/utils/padding.py, left_right_2_no_padding and no_padding_2_padding; the padding itself in
experimental/agent_loop/agent_loop.py, AgentLoopWorker._agent_loop_postprocess and _postprocess. Left out: images,
M-RoPE positions, routed experts, teachers.

    prompts         . . p p p            pad on the left, [num_rows, prompt_length]
    responses                 r r t r .  pad on the right, [num_rows, response_length]; t was written by a tool
    response_mask             1 1 0 1 0
    attention_mask  0 0 1 1 1 1 1 1 1 0  [num_rows, prompt_length + response_length]
    position_ids    0 0 0 1 2 3 4 5 6 6

A batch is as wide as the config allows, however short its rows are: the serial pipeline carries, compares and copies
that padding between all stages, and takes it out again before each model call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.agent_loop import AgentLoopOutput
from kitlib.trainer.v0.columns import object_column
from kitlib.trainer.v0.errors import SerialPipelineError
from kitlib.trainer.v0.protocol import DataProto
from kitlib.transfer_queue import jagged, padded
from kitlib.workers.padding import response_from_nested

# Columns that are there whatever the agent loop reports, so that parts from different loops can be joined.
DEFAULT_EXTRA_FIELDS = ("turn_scores", "tool_rewards", "min_global_steps", "max_global_steps")


def collate_outputs(
    outputs: Sequence[AgentLoopOutput], prompt_length: int, response_length: int, pad_token_id: int
) -> DataProto:
    """One row a session, padded to the widths above.

    batch: prompts, responses, response_mask, input_ids, attention_mask, position_ids int64; rollout_log_probs float32
    if the server reported them; rm_scores float32 if every session has a score, which stands on its last token.
    non_tensor_batch: `__num_turns__`, the reward's extra info and the agent loop's extra fields, one column each.
    meta_info: metrics, a dictionary a session; reward_extra_keys.
    """
    of_prompts, of_responses = [o.prompt_ids for o in outputs], [o.response_ids for o in outputs]
    _require_room(of_prompts, prompt_length, "prompt")
    _require_room(of_responses, response_length, "response")
    prompts = _pad(of_prompts, prompt_length, pad_token_id, left=True)
    responses = _pad(of_responses, response_length, pad_token_id)
    of_prompts, of_responses = ([[1] * len(row) for row in rows] for rows in (of_prompts, of_responses))
    attention_mask = torch.cat([_pad(of_prompts, prompt_length, left=True), _pad(of_responses, response_length)], dim=1)
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": _pad([output.response_mask for output in outputs], response_length),
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
    }
    log_probs = [output.response_logprobs for output in outputs if output.response_logprobs is not None]
    if len(log_probs) == len(outputs):
        tensors["rollout_log_probs"] = _pad(log_probs, response_length, 0.0)
    scores = [output.reward_score for output in outputs if output.reward_score is not None]
    if len(scores) == len(outputs):
        last = torch.tensor([len(output.response_ids) - 1 for output in outputs])
        tensors["rm_scores"] = torch.zeros(len(outputs), response_length)
        tensors["rm_scores"][torch.arange(len(outputs)), last] = torch.tensor(scores, dtype=torch.float32)
    objects, reward_extra_keys = _objects(outputs)
    meta_info = {"metrics": [output.metrics.as_dict() for output in outputs], "reward_extra_keys": reward_extra_keys}
    return DataProto.from_dict(tensors, objects, meta_info)


def _objects(outputs: Sequence[AgentLoopOutput]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Numpy columns, and the names of those that the reward function reported."""
    columns = {"__num_turns__": object_column([output.num_turns for output in outputs])}
    infos = [output.extra_fields.get("reward_extra_info", {}) for output in outputs]
    columns |= {name: object_column([info[name] for info in infos]) for name in infos[0]}
    names = dict.fromkeys([*DEFAULT_EXTRA_FIELDS, *(name for output in outputs for name in output.extra_fields)])
    columns |= {name: object_column([output.extra_fields.get(name) for output in outputs]) for name in names}
    return columns, list(infos[0])


def left_right_2_no_padding(data: DataProto, response_columns: Iterable[str] = ()) -> TensorDict:
    """The columns that a worker reads, jagged: input_ids, position_ids [S], prompts [P], responses [R], and
    `response_columns` [R] of which those that the batch lacks are left out."""
    assert data.batch is not None
    attended = data.batch["attention_mask"].bool()  # [num_rows, prompt_length + response_length]
    of_prompt, of_response = attended.split([data.batch[name].shape[1] for name in ("prompts", "responses")], dim=1)
    columns = {name: _rows(data.batch[name], attended) for name in ("input_ids", "position_ids")}
    columns["prompts"] = _rows(data.batch["prompts"], of_prompt)
    for name in ("responses", *response_columns):
        if name in data.batch:
            columns[name] = _rows(data.batch[name], of_response)
    return TensorDict(columns, batch_size=[len(data)])


def no_padding_2_padding(tensor: Tensor, data: DataProto) -> Tensor:
    """The response part of a model output: jagged [num_rows, S] to [num_rows, response_length], zeros on the right."""
    assert data.batch is not None
    responses = left_right_2_no_padding(data)["responses"]
    return padded(response_from_nested(tensor, responses), data.batch["responses"].shape[1])


def _require_room(rows: Sequence[Sequence[int]], width: int, what: str) -> None:
    longest = max(map(len, rows))
    if longest > width:
        raise SerialPipelineError(
            f"a {what} of {longest} tokens does not fit into the {width} columns of a batch: raise "
            f"data.max_{what}_length, or have the agent loop stop earlier"
        )


def _pad(rows: Sequence[Sequence[float]], width: int, value: float = 0, left: bool = False) -> Tensor:
    filled = [[*[value] * (width - len(row)), *row] if left else [*row, *[value] * (width - len(row))] for row in rows]
    return torch.tensor(filled)


def _rows(column: Tensor, kept: Tensor) -> Tensor:
    """The `kept` values of each row as a jagged column."""
    return jagged(list(column[kept].split(kept.sum(dim=1).tolist())))
