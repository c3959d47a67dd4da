"""One forward of the model over a block of rows: mask, positions and cache put together.

verl 0.9.1 has none of its own: this is what vLLM's model runner does. Rows have different lengths, so everything that
says where a token stands is explicit: position_ids, a 4-D mask, and the positions at which the cache is written. That
is all it takes to decode such rows together with any causal LM of transformers that uses the Cache interface with sdpa
or eager attention.
Left out: sliding windows, linear attention, flash attention (it takes no 4-D mask), compiled graphs.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kitlib.rollout.protocol import RolloutError
from kitlib.rollout.slot_cache import SlotCache
from kitlib.rollout.slot_table import Moves

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ModelRunner:
    """The model and its cache. RolloutError if the model cannot be run this way."""

    def __init__(self, model: PreTrainedModel, max_num_rows: int, max_length: int) -> None:
        check_model(model, max_length)
        self.model = model.eval()
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self.cache = SlotCache(max_num_rows, max_length)
        self._kwargs = _forward_kwargs(model, self.cache)
        self._mask_value = torch.finfo(model.dtype).min

    @property
    def device(self) -> torch.device:
        return self.model.device

    def forward(
        self, rows: slice, token_ids: np.ndarray, positions: np.ndarray, is_padding: np.ndarray | None
    ) -> Tensor:
        """Compute `token_ids` and return the logits of the last column, float32 [num_rows, vocab_size].

        All arguments are [num_rows, width]. `positions` say where each token stands in its row; a token sees its row up
        to there. They must differ within a row, also those of padding, which is written and computed like the rest, but
        with position id 0, which any model has. None means no padding.
        """
        written = torch.from_numpy(positions).to(self.device)
        kv_length = 1 + int((positions if is_padding is None else np.where(is_padding, 0, positions)).max())
        is_fresh = not positions[:, 0].any()  # no padding, nothing cached: whole prompts of one length
        self.cache.reserve(rows.stop, int(positions.max()) + 1)
        self.cache.begin(rows, written, kv_length, is_fresh)
        position_ids = written if is_padding is None else written.masked_fill(_tensor(is_padding, self.device), 0)
        logits = self.model(
            input_ids=_tensor(token_ids, self.device),
            position_ids=position_ids,
            # without a mask the model takes a causal one, which sdpa computes faster than one that is written out
            attention_mask=None if is_fresh else self._mask(written, kv_length),
            **self._kwargs,
        ).logits
        return logits[:, -1].float()

    def _mask(self, positions: Tensor, kv_length: int) -> Tensor:
        """0 where a token may look, the most negative number elsewhere: [num_rows, 1, width, kv_length]."""
        visible = torch.arange(kv_length, device=self.device) <= positions.unsqueeze(-1)
        mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=self.device)
        return mask.masked_fill_(~visible, self._mask_value).unsqueeze(1)

    def move(self, moves: Moves) -> None:
        """Copy rows of the cache."""
        if len(moves.target):
            self.cache.reserve(1 + int(max(moves.source.max(), moves.target.max())), moves.length)
            self.cache.copy_rows(_tensor(moves.source, self.device), _tensor(moves.target, self.device), moves.length)


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)


def _forward_kwargs(model: PreTrainedModel, cache: SlotCache) -> dict[str, Any]:
    parameters = inspect.signature(model.forward).parameters
    kwargs: dict[str, Any] = {"use_cache": True, "cache" if "cache" in parameters else "past_key_values": cache}
    if "logits_to_keep" in parameters:  # else the logits of all columns are computed and the last one is taken
        kwargs["logits_to_keep"] = 1
    return kwargs


def check_model(model: PreTrainedModel, max_model_len: int) -> None:
    """RolloutError if rows of different lengths cannot be decoded together with this model."""
    config, name = model.config.get_text_config(), type(model).__name__
    parameters = inspect.signature(model.forward).parameters
    if "position_ids" not in parameters or not {"cache", "past_key_values"} & parameters.keys():
        raise RolloutError(
            f"{name} takes no position_ids or no cache: the transformers server needs both, use a vLLM server"
        )
    if config._attn_implementation not in ("sdpa", "eager"):
        raise RolloutError(
            f"{name} uses attention {config._attn_implementation!r}, which ignores a 4-D mask: "
            "load it with attn_implementation='sdpa' or 'eager'"
        )
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and max_model_len > limit:
        raise RolloutError(
            f"max_model_len {max_model_len} is above the {limit} positions of {name}: "
            "lower actor_rollout_ref.rollout.max_model_len"
        )
    layer_types = set(getattr(config, "layer_types", None) or ())
    if layer_types - {"full_attention", "sliding_attention"}:
        raise RolloutError(
            f"{name} has layers of type {sorted(layer_types)}: the transformers server knows attention layers only"
        )
    window = getattr(config, "sliding_window", None)
    if window and window < max_model_len and layer_types != {"full_attention"}:
        raise RolloutError(
            f"{name} attends to a window of {window} tokens, max_model_len is {max_model_len}: the transformers server "
            f"has no sliding window, set actor_rollout_ref.rollout.max_model_len to {window} or less"
        )
