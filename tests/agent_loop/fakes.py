"""What the tests of the agent loop put in place of a model, a data loader and a queue."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from kitlib.config import Config, load_config
from kitlib.lessons.make_data.tokenizer import CHARACTERS, build_tokenizer
from kitlib.rollout.protocol import TokenOutput

TOKENIZER = build_tokenizer()
WIDE_TOKENIZER = build_tokenizer()
WIDE_TOKENIZER.add_tokens([character for character in string.printable if character not in CHARACTERS])
LOG_PROB = -0.5  # of every token that the fake client makes up

Reply = str | TokenOutput | Exception | Callable[[list[int], dict[str, Any]], Any]


def config(*overrides: str) -> Config:
    """The shipped configuration with one agent loop worker and two sessions a prompt."""
    rollout = "actor_rollout_ref.rollout"
    small = [f"{rollout}.agent.num_workers=1", f"{rollout}.n=2", "data.train_batch_size=2"]
    return load_config([*small, "actor_rollout_ref.actor.ppo_mini_batch_size=2", *overrides])


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def text(token_ids: Any) -> str:
    return TOKENIZER.decode(list(token_ids))


def answer(reply: str, step: int = 0, tokenizer: Any = TOKENIZER) -> TokenOutput:
    """A finished turn that says `reply`, written by weight version `step`."""
    token_ids = tokenizer.encode(reply + "<|im_end|>", add_special_tokens=False)
    versions = {"global_steps": step, "min_global_steps": step, "max_global_steps": step}
    return TokenOutput(token_ids, [LOG_PROB] * len(token_ids), "completed", 0, versions)


class FakeClient:
    """Answers the k-th turn of each session with the k-th reply. Keeps the requests it got."""

    def __init__(self, *replies: Reply, tokenizer: Any = TOKENIZER) -> None:
        self.replies = replies
        self.tokenizer = tokenizer
        self.requests: list[dict[str, Any]] = []
        self.turns: dict[str, int] = {}

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.requests.append({"request_id": request_id, "prompt_ids": list(prompt_ids), **sampling_params})
        turn = self.turns.get(request_id, 0)
        self.turns[request_id] = turn + 1
        await asyncio.sleep(0)
        reply = self.replies[turn]
        if callable(reply):
            reply = reply(prompt_ids, sampling_params)
            if asyncio.iscoroutine(reply):
                reply = await reply
        if isinstance(reply, Exception):
            raise reply
        return answer(reply, tokenizer=self.tokenizer) if isinstance(reply, str) else reply


def row(question: str = "12*59=?", **columns: Any) -> dict[str, Any]:
    """A dataset row as the collate function gives it."""
    return {
        "raw_prompt": [{"role": "user", "content": question}],
        "data_source": "kitlib/mult_tool",
        "reward_model": {"style": "rule", "ground_truth": "708"},
        "extra_info": {"split": "train", "index": 0},
        "index": 0,
        "tools_kwargs": {},
        "interaction_kwargs": {},
        **columns,
    }


def batch_of(rows: list[dict[str, Any]], uids: list[str], global_steps: int = 1, **constants: Any) -> TensorDict:
    """What the trainer hands to generate_sequences: object columns, one tensor, and constants of the batch."""
    columns: dict[str, Any] = {name: NonTensorStack(*[one[name] for one in rows]) for name in rows[0]}
    columns["uid"] = NonTensorStack(*uids)
    columns["dummy_tensor"] = torch.zeros(len(rows), 1, dtype=torch.uint8)
    for name, value in {"global_steps": global_steps, **constants}.items():
        columns[name] = NonTensorData(value)
    return TensorDict(columns, batch_size=len(rows))
