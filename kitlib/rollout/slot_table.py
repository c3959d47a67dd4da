"""Which request owns which row, and how far it is: plain numpy arrays, so that a decode step loops over no row in
Python.

verl 0.9.1 has none of its own: vLLM's input batch does this work there.

    rows   0 ........ num_active ........ num_used ........ max_num_rows
           decoding   | parked            | never used
A finished request leaves its row parked: the keys and values stay until the row is needed, and a request of the same
request_id (the next turn of the conversation) takes the row back and computes only what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kitlib.rollout.sampling import SamplingParams


@dataclass(eq=False, slots=True)
class Request:
    """One generation request. `max_tokens` is the resolved budget, `noise_key` seeds its draws, `owner` is the
    caller's."""

    request_id: str
    prompt_ids: np.ndarray  # int64 [prompt_length]
    params: SamplingParams
    max_tokens: int
    noise_key: int
    owner: Any = None


@dataclass(frozen=True)
class Moves:
    """Rows of the cache to copy: target[i] takes what source[i] held, up to position `length`."""

    source: np.ndarray  # int64 [num_moves]
    target: np.ndarray  # int64 [num_moves]
    length: int

    def without(self, excluded: np.ndarray) -> Moves:
        """The moves to rows that are not `excluded`, bool [num_rows]."""
        kept = ~excluded[self.target]
        return Moves(self.source[kept], self.target[kept], self.length)


class SlotTable:
    """Row bookkeeping. `join` and `release` keep the decoding rows first and say which rows of the cache have to
    move."""

    def __init__(self, max_num_rows: int, max_length: int) -> None:
        self.max_num_rows = max_num_rows
        self.num_active = 0
        self.num_used = 0
        self.requests: list[Request | None] = [None] * max_num_rows
        self.tokens = np.zeros((max_num_rows, max_length), dtype=np.int64)  # prompt, then output
        self.log_probs = np.zeros((max_num_rows, max_length), dtype=np.float32)  # at the position of the token
        self.length = np.zeros(max_num_rows, dtype=np.int64)  # tokens in the row
        self.prompt_length = np.zeros(max_num_rows, dtype=np.int64)
        self.end_length = np.zeros(max_num_rows, dtype=np.int64)  # length at which the request ends
        self.num_cached = np.zeros(max_num_rows, dtype=np.int64)  # prompt tokens that need no computation
        self.noise_key = np.zeros(max_num_rows, dtype=np.uint64)
        self.style = np.zeros(max_num_rows, dtype=np.int64)  # rows of one style are sampled with the same parameters
        self.stops_at_eos = np.zeros(max_num_rows, dtype=bool)
        self.has_stop_ids = np.zeros(max_num_rows, dtype=bool)
        self.first_version = np.zeros(max_num_rows, dtype=np.int64)  # weights that made the first output token
        self.last_version = np.zeros(max_num_rows, dtype=np.int64)  # weights that made the last one
        self.parked_at = np.zeros(max_num_rows, dtype=np.int64)
        self._num_parkings = 0
        self._per_row = [array for array in vars(self).values() if isinstance(array, np.ndarray) and array.ndim == 1]

    @property
    def num_free(self) -> int:
        return self.max_num_rows - self.num_active

    def claim(self, requests: Sequence[Request], reuse: bool) -> tuple[list[int], list[int]]:
        """Choose a row for each request: its parked row, else an unused row, else the one that was parked longest.

        Returns the rows and, for each, how many leading prompt tokens the row already holds (0 unless `reuse`). At
        least one prompt token is always left to compute, because its logits are needed.
        """
        parked = range(self.num_active, self.num_used)
        row_of = {self.requests[row].request_id: row for row in parked} if reuse else {}  # type: ignore[union-attr]
        rows: list[int | None] = [row_of.pop(request.request_id, None) for request in requests]
        taken = set(rows)
        oldest = iter(sorted((row for row in parked if row not in taken), key=self.parked_at.__getitem__))
        cached = []
        for i, request in enumerate(requests):
            row = rows[i]
            cached.append(0 if row is None else self._common_prefix(row, request.prompt_ids))
            if row is None and self.num_used < self.max_num_rows:
                rows[i] = self.num_used
                self.num_used += 1
            elif row is None:
                rows[i] = next(oldest)
        return rows, cached  # type: ignore[return-value]

    def _common_prefix(self, row: int, prompt_ids: np.ndarray) -> int:
        # the last token of a row has been sampled but not computed, so it has no keys and values
        length = min(int(self.length[row]) - 1, len(prompt_ids) - 1)
        different = np.flatnonzero(self.tokens[row, :length] != prompt_ids[:length])
        return int(different[0]) if len(different) else length

    def join(self, requests: Sequence[Request], rows: Sequence[int], cached: Sequence[int]) -> Moves:
        """Make requests[i], who claimed rows[i], decoding row num_active + i, holding its prompt."""
        order = list(range(self.num_used))  # order[place] is the row that comes to this place
        place_of = list(range(self.num_used))
        first = self.num_active
        for place, row in enumerate(rows, start=first):
            other, place_of_row = order[place], place_of[row]
            order[place], order[place_of_row] = row, other
            place_of[row], place_of[other] = place, place_of_row
        moves = self._permute(np.array(order, dtype=np.int64))
        self.num_active += len(requests)
        nothing_to_keep = np.zeros(self.num_used, dtype=bool)
        nothing_to_keep[first : self.num_active] = np.array(cached) == 0
        for row, request, num_cached in zip(range(first, self.num_active), requests, cached, strict=True):
            self._fill(row, request, num_cached)
        return moves.without(nothing_to_keep)

    def _fill(self, row: int, request: Request, num_cached: int) -> None:
        prompt_length = len(request.prompt_ids)
        self.requests[row] = request
        self.tokens[row, :prompt_length] = request.prompt_ids
        self.length[row] = self.prompt_length[row] = prompt_length
        self.end_length[row] = prompt_length + request.max_tokens
        self.num_cached[row] = num_cached
        self.noise_key[row] = request.noise_key
        self.stops_at_eos[row] = not request.params.ignore_eos
        self.has_stop_ids[row] = bool(request.params.stop_token_ids)

    def append(self, rows: slice, token_ids: np.ndarray, log_probs: np.ndarray, version: int) -> None:
        """Add one output token to each of `rows`. `token_ids` int64 [num_rows], `log_probs` float32 [num_rows]."""
        length = self.length[rows]  # a view: it grows below
        index = np.arange(rows.start, rows.stop)
        self.tokens[index, length] = token_ids
        self.log_probs[index, length] = log_probs
        first = length == self.prompt_length[rows]
        if first.any():
            self.first_version[rows][first] = version
        self.last_version[rows] = version
        length += 1

    def release(self, rows: np.ndarray) -> Moves:
        """Park decoding `rows`: the last decoding rows fill the places they leave."""
        num_left = self.num_active - len(rows)
        leaving = np.zeros(self.num_active, dtype=bool)
        leaving[rows] = True
        self.parked_at[rows] = self._num_parkings
        self._num_parkings += 1
        holes = np.flatnonzero(leaving[:num_left])
        last = num_left + np.flatnonzero(~leaving[num_left:])
        order = np.arange(self.num_used)
        order[holes], order[last] = last, holes
        self.num_active = num_left
        return self._permute(order)

    def _permute(self, order: np.ndarray) -> Moves:
        target = np.flatnonzero(order != np.arange(len(order)))
        source = order[target]
        if len(target) == 0:
            return Moves(source, target, 0)
        length = int(self.length[source].max())
        self.tokens[target, :length] = self.tokens[source, :length]
        self.log_probs[target, :length] = self.log_probs[source, :length]
        for array in self._per_row:
            array[target] = array[source]
        moved = [self.requests[row] for row in source]
        for row, request in zip(target, moved, strict=True):
            self.requests[row] = request
        return Moves(source, target, length)

    def forget_parked(self) -> None:
        """Drop every parked row, because its keys and values belong to other weights or to a cache that was freed."""
        self.requests[self.num_active :] = [None] * (self.max_num_rows - self.num_active)
        self.num_used = self.num_active
