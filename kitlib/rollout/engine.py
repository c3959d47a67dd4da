"""The decoder behind the transformers server: requests in, finished outputs out, one token a step. No threads here.

verl 0.9.1 leaves this to vLLM's engine core. What is kept of it: requests join and leave between decode steps, a
prompt that several waiting requests share is computed once, and the next turn of a conversation computes only its new
tokens. Left out: preemption (a row always has room for its longest output), chunked prefill of one prompt, beam
search, multi-modal input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kitlib.rollout.model_runner import ModelRunner
from kitlib.rollout.protocol import RolloutError, StopReason, TokenOutput
from kitlib.rollout.sampling import SamplingControls, sample, uniforms
from kitlib.rollout.slot_table import Moves, Request, SlotTable
from kitlib.rollout.weights import copy_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Finished = tuple[Request, TokenOutput]


class DecodingEngine:
    """Continuous batching over one model. Used by one thread at a time, inside `torch.inference_mode()`."""

    def __init__(
        self,
        model: PreTrainedModel,
        eos_token_ids: Iterable[int],
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int = 8192,
        enable_prefix_caching: bool = True,
        global_steps: int = 0,
    ) -> None:
        self.runner = ModelRunner(model, max_num_seqs, max_model_len)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_prefix_caching = enable_prefix_caching
        self.global_steps = global_steps
        self.on_join: Callable[[Sequence[Request]], None] = lambda requests: None  # told who gets a row
        self.waiting: deque[Request] = deque()
        self._table = SlotTable(max_num_seqs, max_model_len)
        self._is_eos = np.zeros(self.runner.vocab_size, dtype=bool)
        self._is_eos[list(eos_token_ids)] = True
        self._styles: dict[tuple, int] = {}
        self._controls: dict[int, SamplingControls] = {}  # for blocks of one style, by style

    @property
    def num_active(self) -> int:
        return self._table.num_active

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) or self.num_active > 0

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def step(self) -> list[Finished]:
        """Let waiting requests join, or else make one token for every active row. Returns the requests this ended."""
        if self.waiting and self._table.num_free:
            return self._join()
        if self.num_active:
            return self._decode()
        return []

    def abort_all(self) -> list[Finished]:
        """End every request, active or waiting, with what it has."""
        finished = self._finish(np.arange(self.num_active), "aborted")
        finished += [(request, self.empty_output()) for request in self.waiting]
        self.waiting.clear()
        return finished

    def remove(self, owners: set[Any]) -> None:
        """Drop the requests of `owners` without an output, because nobody waits for them any more."""
        self.waiting = deque(request for request in self.waiting if request.owner not in owners)
        rows = [row for row, request in enumerate(self._table.requests[: self.num_active]) if request.owner in owners]  # type: ignore[union-attr]
        self.runner.move(self._table.release(np.array(rows, dtype=np.int64)))

    def load_weights(self, state_dict: Mapping[str, Tensor], global_steps: int) -> None:
        """Copy new weights into the model. Active rows keep their keys and values, parked ones are dropped."""
        copy_weights(self.runner.model, state_dict, global_steps)
        self.global_steps = global_steps
        self._table.forget_parked()

    def free_cache(self) -> None:
        """Give the memory of the KV cache back. No row may be active, except when the engine is not used any more."""
        self._table.forget_parked()
        self.runner.cache.free()

    # ---- a step ----------------------------------------------------------------------------------------------------

    def _join(self) -> list[Finished]:
        table = self._table
        if not self.enable_prefix_caching:
            table.forget_parked()
        batch = [self.waiting.popleft() for _ in range(min(len(self.waiting), table.num_free))]
        rows, cached = table.claim(batch, reuse=self.enable_prefix_caching)
        order, leaders = self._share_prompts(batch, cached)
        first, num_computed = table.num_active, len(batch) - len(leaders)
        self.runner.move(table.join([batch[i] for i in order], [rows[i] for i in order], [cached[i] for i in order]))
        joined = slice(first, table.num_active)
        table.style[joined] = [self._style_of(batch[i]) for i in order]
        self.on_join(batch)
        logits = self._prefill(slice(first, first + num_computed))
        if leaders:
            logits = self._copy_prompts(first, num_computed, leaders, logits)
        return self._append(joined, logits)

    def _share_prompts(self, batch: list[Request], cached: list[int]) -> tuple[list[int], list[int]]:
        """Order `batch` so that requests whose prompt an earlier one computes, their leader, come last.

        Returns the order (indices into the batch) and, for each of the last ones, the place of its leader in it.
        """
        place_of_prompt: dict[bytes, int] = {}
        computed: list[int] = []
        followers: list[tuple[int, int]] = []
        for i, request in enumerate(batch):
            prompt = request.prompt_ids.tobytes() if self.enable_prefix_caching and cached[i] == 0 else None
            if prompt is not None and prompt in place_of_prompt:
                followers.append((i, place_of_prompt[prompt]))
                continue
            if prompt is not None:
                place_of_prompt[prompt] = len(computed)
            computed.append(i)
        return computed + [i for i, _ in followers], [leader for _, leader in followers]

    def _copy_prompts(self, first: int, num_computed: int, leaders: list[int], logits: Tensor) -> Tensor:
        table, source = self._table, np.array(leaders) + first
        target = np.arange(first + num_computed, table.num_active)
        table.num_cached[target] = table.prompt_length[target]
        self.runner.move(Moves(source, target, int(table.prompt_length[target].max())))
        return torch.cat([logits, logits[torch.tensor(leaders, device=logits.device)]])

    def _prefill(self, rows: slice) -> Tensor:
        """Compute the prompts of `rows`, as many at once as the budget allows: logits [num_rows, vocab_size]."""
        table, logits, start = self._table, [], rows.start
        while start < rows.stop:
            counts = table.length[start : rows.stop] - table.num_cached[start : rows.stop]
            num_tokens = np.maximum.accumulate(counts) * np.arange(1, len(counts) + 1)
            stop = start + max(1, int(np.searchsorted(num_tokens, self.max_num_batched_tokens, side="right")))
            logits.append(self._prefill_chunk(slice(start, stop)))
            start = stop
        return torch.cat(logits) if len(logits) > 1 else logits[0]

    def _prefill_chunk(self, rows: slice) -> Tensor:
        """New tokens stand at the right end, so that the last column is the last token of every row.

        The padding on the left is given the positions that follow the row's last token: they are written now, never
        attended to, and written again when the row gets there.
        """
        table = self._table
        cached = table.num_cached[rows, None]
        count = table.length[rows, None] - cached  # [num_rows, 1] tokens to compute
        width = int(count.max())
        offset = np.arange(width) - (width - count)  # [num_rows, width], negative on padding
        is_padding = offset < 0
        positions = cached + np.where(is_padding, count - 1 - offset, offset)
        token_ids = np.take_along_axis(table.tokens[rows], np.where(is_padding, 0, positions), axis=1)
        return self.runner.forward(rows, token_ids, positions, is_padding)

    def _decode(self) -> list[Finished]:
        table, rows = self._table, slice(0, self.num_active)
        positions = table.length[rows] - 1  # of the last token, which has been sampled but not computed
        token_ids = table.tokens[np.arange(rows.stop), positions]
        logits = self.runner.forward(rows, token_ids[:, None], positions[:, None], None)
        return self._append(rows, logits)

    # ---- sampling --------------------------------------------------------------------------------------------------

    def _append(self, rows: slice, logits: Tensor) -> list[Finished]:
        """Draw a token for each of `rows`, add it, and end the requests that are done."""
        table = self._table
        controls = self._controls_of(rows)
        uniform = torch.from_numpy(uniforms(table.noise_key[rows], table.length[rows])).to(logits.device)
        seen = self._seen(rows, logits) if controls.repetition_penalty is not None else None
        drawn, drawn_log_probs = sample(logits, controls, uniform, seen)
        token_ids, log_probs = drawn.cpu().numpy(), drawn_log_probs.cpu().numpy()
        if np.isnan(log_probs).any():
            request = table.requests[rows.start + int(np.isnan(log_probs).argmax())]
            raise RolloutError(
                f"the model gave NaN logits for request {request.request_id!r} at weight version {self.global_steps}: "  # type: ignore[union-attr]
                "the weights that were loaded are not finite, look at the training step that made them"
            )
        table.append(rows, token_ids, log_probs, self.global_steps)
        stopped = self._is_eos[token_ids] & table.stops_at_eos[rows]
        for i in np.flatnonzero(table.has_stop_ids[rows]):
            stopped[i] |= token_ids[i] in table.requests[rows.start + i].params.stop_token_ids  # type: ignore[union-attr]
        done = stopped | (table.length[rows] >= table.end_length[rows])
        if not done.any():
            return []
        return self._finish(rows.start + np.flatnonzero(done), np.where(stopped[done], "completed", "length"))

    def _finish(self, rows: np.ndarray, reasons: np.ndarray | StopReason) -> list[Finished]:
        table = self._table
        reasons = np.broadcast_to(reasons, rows.shape)
        finished = [
            (table.requests[row], self._output(row, str(reason))) for row, reason in zip(rows, reasons, strict=True)
        ]
        self.runner.move(table.release(rows))
        return finished  # type: ignore[return-value]

    def _output(self, row: int, reason: Any) -> TokenOutput:
        table = self._table
        output = slice(table.prompt_length[row], table.length[row])
        if output.start == output.stop:
            return self.empty_output()
        return TokenOutput(
            token_ids=table.tokens[row, output].tolist(),
            log_probs=table.log_probs[row, output].tolist() if table.requests[row].params.logprobs else None,  # type: ignore[union-attr]
            stop_reason=reason,
            extra_fields={
                "global_steps": int(table.last_version[row]),
                "min_global_steps": int(table.first_version[row]),
                "max_global_steps": int(table.last_version[row]),
                "num_cached_tokens": int(table.num_cached[row]),
            },
        )

    def empty_output(self) -> TokenOutput:
        """The answer to a request that is aborted before its first token."""
        versions = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), self.global_steps)
        return TokenOutput(token_ids=[], stop_reason="aborted", extra_fields=versions | {"num_cached_tokens": 0})

    def _style_of(self, request: Request) -> int:
        p = request.params
        return self._styles.setdefault((p.temperature, p.top_p, p.top_k, p.repetition_penalty), len(self._styles))

    def _controls_of(self, rows: slice) -> SamplingControls:
        styles = self._table.style[rows]
        style = int(styles[0])
        if (styles == style).all():
            if style not in self._controls:
                self._controls[style] = self._build_controls(slice(rows.start, rows.start + 1))
            return self._controls[style]
        return self._build_controls(rows)

    def _build_controls(self, rows: slice) -> SamplingControls:
        params = [request.params for request in self._table.requests[rows]]  # type: ignore[union-attr]
        return SamplingControls.of(params, self.runner.vocab_size, self.runner.device)

    def _seen(self, rows: slice, logits: Tensor) -> Tensor:
        """Which tokens each row holds already, bool [num_rows, vocab_size]."""
        longest = int(self._table.length[rows].max())
        tokens = self._table.tokens[rows, :longest]
        inside = np.arange(longest) < self._table.length[rows, None]
        seen = np.zeros((len(tokens), logits.shape[1]), dtype=bool)
        seen[np.nonzero(inside)[0], tokens[inside]] = True
        return torch.from_numpy(seen).to(logits.device)
