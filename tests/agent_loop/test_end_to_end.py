"""The agent loop on the shipped model and the transformers server: what is stored is what the model said."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kitlib.agent_loop import AgentLoopManagerTQ
from kitlib.config import Config
from kitlib.models import load_causal_lm, load_tokenizer
from kitlib.paths import data_path
from kitlib.reward import RewardLoopWorker
from kitlib.rollout import LLMServerManager
from kitlib.transfer_queue import TransferQueue
from tests.agent_loop.fakes import batch_of, config, row

QUESTIONS = {"12*59=?": "708", "34*21=?": "714", "99*99=?": "9801", "10*10=?": "100"}


@pytest.fixture(scope="module")
def model_path() -> str:
    return str(data_path("models/mult_tool"))


@pytest.fixture
def settings(model_path: str) -> Config:
    return config("actor_rollout_ref.rollout.n=8", f"actor_rollout_ref.model.path={model_path}", "trainer.device=cpu")


@pytest.fixture
def queue(settings: Config, model_path: str) -> Iterator[TransferQueue]:
    """A queue with the finished sessions of QUESTIONS: eight sampled ones each, and greedy ones in `val`.

    One worker: requests arrive in the same order every time, so that the same words are drawn.
    """
    tokenizer, tq = load_tokenizer(model_path), TransferQueue()
    servers = LLMServerManager(settings, tokenizer)
    reward = RewardLoopWorker(settings, tokenizer)
    agents = AgentLoopManagerTQ(settings, tq, servers.get_client(), tokenizer, [reward], num_workers=1)
    try:
        rows = [
            row(question, agent_name="tool_agent", reward_model={"ground_truth": truth})
            for question, truth in QUESTIONS.items()
        ]
        agents.generate_sequences(batch_of(rows, list("abcd"), global_steps=1))
        agents.generate_sequences(batch_of(rows, list("efgh"), global_steps=1, validate=True))
        deadline = time.monotonic() + 250
        while agents.ledger.running():
            assert time.monotonic() < deadline
            tq.wait_for_change(tq.version, timeout=0.05)
        agents.ledger.raise_if_failed()
        yield tq
    finally:
        agents.close()
        servers.close()
        tq.close()


def test_what_is_stored_is_what_the_model_said(queue: TransferQueue, model_path: str) -> None:
    tokenizer, model = load_tokenizer(model_path), load_causal_lm(model_path).eval()
    tags = queue.kv_list("train")["train"]
    assert {tags[uid]["status"] for uid in "abcd"} == {"finished"}
    keys = [key for key in tags if "_" in key]
    assert len(keys) == 8 * len(QUESTIONS)
    data = queue.kv_batch_get(keys, "train")
    columns = {name: data[name].unbind() for name in ("input_ids", "responses", "response_mask", "rm_scores")}
    log_probs = data["rollout_log_probs"].unbind()
    num_tool_calls = 0
    for i in range(len(keys)):
        mask, response = columns["response_mask"][i].bool(), columns["responses"][i]
        said = tokenizer.decode(response)
        conversation = _as_messages(data.get("raw_prompt").tolist()[i], said)
        rendered, stored = (
            tokenizer.apply_chat_template(conversation, return_dict=False),
            columns["input_ids"][i].tolist(),
        )
        assert rendered[: len(stored)] == stored
        assert tokenizer.decode(rendered[len(stored) :]) in ("\n", "<|im_end|>\n")  # the latter if cut for length
        num_tool_calls += "<tool_call>" in said
        assert bool(mask.all()) == ("<|im_start|>tool" not in said)

        truth = data.get("reward_model").tolist()[i]["ground_truth"]
        assert columns["rm_scores"][i][-1] == float(said.endswith(f"####{truth}<|im_end|>"))

        with torch.no_grad():
            logits = model(columns["input_ids"][i].unsqueeze(0)).logits[0].float()
        expected = logits.log_softmax(-1)[-len(response) - 1 : -1].gather(1, response.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(log_probs[i], torch.where(mask, expected, 0.0), atol=1e-3, rtol=1e-3)
    assert 0 < num_tool_calls < len(keys)  # the shipped model mostly guesses, and sometimes calls


def test_validation_is_greedy_and_apart(queue: TransferQueue) -> None:
    tags = queue.kv_list("val")["val"]
    assert {tags[uid]["status"] for uid in "efgh"} == {"finished"}
    assert sorted(key for key in tags if "_" in key) == ["e_0_0", "f_0_0", "g_0_0", "h_0_0"]


def _as_messages(prompt: list[dict[str, Any]], said: str) -> list[dict[str, Any]]:
    """The conversation behind a decoded response whose first turn is the assistant's."""
    messages = list(prompt)
    for position, turn in enumerate(said.removesuffix("<|im_end|>").split("<|im_end|>")):
        role, content = ("assistant", turn) if position == 0 else turn.removeprefix("\n<|im_start|>").split("\n", 1)
        messages.append({"role": role, "content": content})
    return messages
