"""Padding rows, and columns of responses cut out of columns of whole sequences.

verl 0.9.1: trainer/ppo/padding_utils.py, upsample_batch_to_divisible_size and construct_minimal_padding_template;
workers/utils/padding.py, response_from_nested and response_to_nested. Left out: M-RoPE position ids and routed
experts of mixture models (a field `routed_experts` is dropped from padding rows, as verl does for rows without one).

A mini-batch must divide by ranks and mini-batch sizes. What is missing is filled with rows that do nothing: a prompt
of 127 end tokens, a response of one end token whose mask is 0. Only the tag `is_padding` tells them apart; metrics
have to look at it.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from kitlib.keys import TrajectoryKey
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol, jagged, lengths, list_of_dict_to_tensordict
from kitlib.workers.bridge import partition_of
from kitlib.workers.errors import WorkerError

SYNTHETIC_PADDING_SEQ_LEN = 128
"""Tokens of a padding row: 127 of prompt, 1 of response."""


def upsample_batch_to_divisible_size(
    tq: QueueProtocol, batch: KVBatchMeta, multiple: int, eos_token_id: int
) -> KVBatchMeta:
    """Add padding rows to the queue until the batch divides by `multiple`; returns the longer handle.

    Reads every field of the first row, which is the template; a batch that divides already is returned as it is. Keys
    of padding rows are pad{hex}_{i}_0 with one uid for all, so they form a group of their own and touch no advantage.
    """
    if multiple < 1 or not batch.keys:
        raise WorkerError(f"cannot pad {len(batch)} rows to a multiple of {multiple}")
    num_pads = -len(batch) % multiple
    if num_pads == 0:
        return batch
    row = tq.kv_batch_get(keys=batch.keys[:1], partition_id=partition_of(batch))[0]
    template, tag = padding_row(row, batch.tags[0], eos_token_id)
    uid = f"pad{uuid.uuid4().hex}"
    keys, rows = [], []
    for number in range(num_pads):
        keys.append(str(TrajectoryKey(uid, number, 0)))
        own = {"session_id": number} if "session_id" in template else {}
        rows.append({**copy.deepcopy(template), "uid": uid, **own})
    tags = [copy.deepcopy(tag) for _ in keys]
    tq.kv_batch_put(keys=keys, partition_id=partition_of(batch), fields=list_of_dict_to_tensordict(rows), tags=tags)
    return KVBatchMeta(
        keys=[*batch.keys, *keys],
        tags=[*batch.tags, *tags],
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=batch.extra_info,
    )


def padding_row(row: TensorDict, tag: dict[str, Any], eos_token_id: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields and tag of a padding row, made from a real row. What is not listed here stays as the real row has it."""
    num_tokens = SYNTHETIC_PADDING_SEQ_LEN
    input_ids = torch.full((num_tokens,), eos_token_id, dtype=torch.int64)
    nothing = torch.zeros(1)
    fields: dict[str, Any] = {str(name): copy.deepcopy(row[name]) for name in row.keys() if name != "routed_experts"}
    fields |= {
        "prompts": input_ids[:-1],
        "responses": input_ids[-1:],
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "position_ids": torch.arange(num_tokens, dtype=_dtype(fields.get("position_ids"))),
        "response_mask": nothing.long(),
        "loss_mask": nothing.long(),
        "rm_scores": nothing,
        "rollout_log_probs": nothing,
        "num_turns": 0,
    }
    if "multi_modal_inputs" in fields:
        fields["multi_modal_inputs"] = {}
    if "teacher_ids" in fields:
        fields["teacher_ids"] = fields["teacher_ids"].new_full(
            (num_tokens, *fields["teacher_ids"].shape[1:]), eos_token_id
        )
    if "teacher_logprobs" in fields:
        fields["teacher_logprobs"] = fields["teacher_logprobs"].new_zeros(
            (num_tokens, *fields["teacher_logprobs"].shape[1:])
        )
    lengths_tag = {"is_padding": True, "prompt_len": num_tokens - 1, "response_len": 1, "seq_len": num_tokens}
    return fields, {**copy.deepcopy(tag), **lengths_tag}


def _dtype(column: Tensor | None) -> torch.dtype:
    return torch.int64 if column is None else column.dtype


def response_from_nested(tensor: Tensor, response_mask: Tensor) -> Tensor:
    """Cut the response out of model outputs over whole sequences.

    tensor: jagged [num_rows, S], the value at t belongs to token t + 1; response_mask: jagged [num_rows, R], only its
    lengths count. Returns jagged [num_rows, R]: of each row the slice [S - R - 1 : S - 1].
    """
    response_lens = lengths(response_mask).tolist()
    rows = tensor.unbind()
    return jagged([row[len(row) - num - 1 : len(row) - 1] for row, num in zip(rows, response_lens, strict=True)])


def response_to_nested(tensor: Tensor, response_mask: Tensor) -> Tensor:
    """Cut padded responses [num_rows, max R] to the row lengths of the jagged `response_mask`.

    Returns jagged [num_rows, R].
    """
    return jagged([row[:num] for row, num in zip(tensor, lengths(response_mask).tolist(), strict=True)])
