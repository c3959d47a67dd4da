"""A model that scores conversations: the number is that of the last token, alone or in a crowd."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kitlib.models import load_tokenizer
from kitlib.paths import data_path
from kitlib.reward import RewardError, RewardLoopWorker
from kitlib.reward.reward_model import RewardModel
from tests.reward.test_reward_loop import Output, config_for

PROMPTS = [[{"role": "user", "content": f"{n}*{n}="}] for n in (3, 14, 159)]
RESPONSES = ["####9", "<tool_call>14*14</tool_call>", "####1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random classifier with the shipped tokenizer."""
    return make_reward_model(tmp_path_factory.mktemp("reward_model"))


def make_reward_model(folder: Path) -> Path:
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "head_dim": 8, "num_labels": 1, "initializer_range": 0.3}
    tokenizer = load_tokenizer(str(data_path("models/mult_tool")))
    model = Qwen3ForSequenceClassification(Qwen3Config(vocab_size=len(tokenizer), **sizes, **more))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def alone(model: RewardModel, prompt: Any, response: str) -> float:
    """The score by hand: no batch, no padding."""
    chat = [*prompt, {"role": "assistant", "content": response}]
    ids = torch.tensor([model.tokenizer(model.tokenizer.apply_chat_template(chat, tokenize=False))["input_ids"]])
    with torch.no_grad():
        hidden = model.model.model(input_ids=ids).last_hidden_state[0, -1]
        return model.model.score(hidden).item()


def test_scores_of_a_batch_are_those_of_each_alone(folder: Path) -> None:
    model = RewardModel(folder, micro_batch_size=2)
    expected = [alone(model, prompt, response) for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    assert len({round(score, 4) for score in expected}) == 3
    assert model.score(PROMPTS, RESPONSES) == pytest.approx(expected, rel=1e-4)


def test_a_text_that_ends_with_the_padding_token_is_read_to_its_end(folder: Path) -> None:
    model = RewardModel(folder)
    model.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}" + model.tokenizer.pad_token
    expected = [alone(model, prompt, response) for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    assert model.score(PROMPTS, RESPONSES) == pytest.approx(expected, rel=1e-4)


def test_those_that_wait_together_share_a_forward(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes, all_have_asked = RewardModel(folder), [], threading.Event()
    forward = model._forward

    def counted(texts: list[str]) -> list[float]:
        sizes.append(len(texts))
        assert all_have_asked.wait(100)
        return forward(texts)

    monkeypatch.setattr(model, "_forward", counted)

    async def all_of_them() -> list[float]:
        asked = [asyncio.ensure_future(model.score_later(PROMPTS[i % 3], RESPONSES[i % 3])) for i in range(30)]
        while sum(sizes) + len(model._waiting) < 30:
            await asyncio.sleep(0.001)
        all_have_asked.set()
        return await asyncio.gather(*asked)

    scores = asyncio.run(all_of_them())
    assert sum(sizes) == 30 and len(sizes) <= 2  # those who came first, and all who came while they were scored
    assert scores == pytest.approx(model.score(PROMPTS, RESPONSES) * 10, rel=1e-4)


def test_an_error_reaches_those_who_wait(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = RewardModel(folder)

    def broken(texts: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "_forward", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(model.score_later(PROMPTS[0], RESPONSES[0]))


def test_the_reward_loop_scores_with_a_model_in_its_own_pool(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = RewardModel(folder)
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: RESPONSES[0])
    reward = RewardLoopWorker(config_for(None), tokenizer, model)
    row = {"uid": "u1", "session_id": 3, "raw_prompt": PROMPTS[0]}  # no ground truth: none is needed
    score, extra = asyncio.run(reward.compute_score([Output()], row))
    assert score == pytest.approx(alone(model, PROMPTS[0], RESPONSES[0]), rel=1e-4)
    assert extra == {}
    monkeypatch.setattr(model, "_forward", lambda texts: [float("nan")])
    with pytest.raises(RewardError, match=rf"reward model {folder} returned nan for trajectory u1_3"):
        asyncio.run(reward.compute_score([Output()], row))
