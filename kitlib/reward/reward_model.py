"""A reward model: a classifier with one label that reads a whole conversation and gives it a number.

verl 0.9.1: experimental/reward_loop/reward_loop.py (RewardLoopWorker.compute_score_disrm, compute_rm_score) and
reward_model.py, RewardModelManager. The text is that of verl: prompt and response in the chat template of the reward
model, with its own tokenizer. Left out: an inference server and a router for it, generative reward models (write one
as a custom reward function), sleeping while others use the device.

    reward.reward_model.enable_resource_pool=false   the trainer scores the sampled batch: compute_reward_colocate
    reward.reward_model.enable_resource_pool=true    the agent loop scores each session as it ends, on the last GPU

The score is read at the last token of the text. transformers finds that token by looking for padding from the right,
and mistakes a text that ends with the padding token; so padding here is a token that no text of the batch ends with.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kitlib.models import load_reward_model, load_tokenizer

MICRO_BATCH_SIZE = 32
Messages = Sequence[dict[str, Any]]


class RewardModel:
    """Scores conversations, many at once, or one by one as they come in.

    Args:
        path: folder (or hub id) of a sequence classifier with one label and its tokenizer.
        device: cpu or cuda[:i].
        micro_batch_size: conversations a forward.
    """

    def __init__(
        self, path: str | Path, device: torch.device | str = "cpu", micro_batch_size: int = MICRO_BATCH_SIZE
    ) -> None:
        self.path = str(path)
        self.tokenizer = load_tokenizer(path)
        self.model = load_reward_model(path).to(device).eval()  # type: ignore[arg-type]
        self.micro_batch_size = micro_batch_size
        self._waiting: list[tuple[str, asyncio.Future[float]]] = []
        self._lock = threading.Lock()
        self._is_scoring = False

    def score(self, prompts: Sequence[Messages], responses: Sequence[str]) -> list[float]:
        """The score of each prompt (chat messages) with the text of its response."""
        texts = [self._text(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        scores: list[float] = []
        for start in range(0, len(texts), self.micro_batch_size):
            scores += self._forward(texts[start : start + self.micro_batch_size])
        return scores

    async def score_later(self, prompt: Messages, response: str) -> float:
        """As `score` for one response; those that wait at the same time share a forward, on a thread of its own."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append((self._text(prompt, response), future))
            starts, self._is_scoring = not self._is_scoring, True
        if starts:  # the thread ends when nobody waits any more
            threading.Thread(target=self._serve, name="kitlib-reward-model", daemon=True).start()
        return await future

    def _serve(self) -> None:
        while True:
            with self._lock:
                taken, self._waiting = self._waiting[: self.micro_batch_size], self._waiting[self.micro_batch_size :]
                if not taken:
                    self._is_scoring = False
                    return
            futures = [future for _, future in taken]
            try:
                scores: list[Any] = self._forward([text for text, _ in taken])
            except Exception as error:  # noqa: BLE001  those who wait raise it
                scores = [error] * len(futures)
            for future, score in zip(futures, scores, strict=True):
                with suppress(RuntimeError):  # its event loop has ended
                    future.get_loop().call_soon_threadsafe(_settle, future, score)

    def _text(self, prompt: Messages, response: str) -> str:
        chat = [*prompt, {"role": "assistant", "content": response}]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=False)
        return str(text).removeprefix(self.tokenizer.bos_token or "")  # the tokenizer adds it again

    @torch.no_grad()
    def _forward(self, texts: Sequence[str]) -> list[float]:
        rows = [torch.tensor(ids) for ids in self.tokenizer(list(texts))["input_ids"]]
        ends = {int(row[-1]) for row in rows}
        padding = next(number for number in range(len(rows) + 1) if number not in ends)
        input_ids = torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=padding
        )  # [num_rows, longest]
        self.model.config.pad_token_id = padding
        mask = _lengths_to_mask(torch.tensor([len(row) for row in rows]), input_ids.shape[1])
        device = self.model.device
        return self.model(input_ids=input_ids.to(device), attention_mask=mask.to(device)).logits[:, 0].tolist()


def _lengths_to_mask(row_lens: Tensor, width: int) -> Tensor:
    """1 up to the length of each row, int64 [num_rows, width]."""
    return (torch.arange(width) < row_lens[:, None]).long()


def _settle(future: asyncio.Future[float], score: float | Exception) -> None:
    if future.done():
        return
    if isinstance(score, Exception):
        future.set_exception(score)
    else:
        future.set_result(score)
